"""Where results go. A sink takes one finished batch: `write(batch, batch_id)`."""
