#!/bin/sh
# Entrypoint of headrace/headrace: the command line, under an init that reaps and passes signals on.
# `operator run` and `headrace operator run` are the same: manifests are written both ways.
[ "${1:-}" != headrace ] || shift
exec /usr/bin/tini -- headrace "$@"
