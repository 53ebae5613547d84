#!/usr/bin/env bash
# Measures transactions of etcd, to compare them with `store_rates`: each puts three values of 256
# bytes.
#
#   etcd_rates.sh ETCD BENCHMARK DIRECTORY MEMBERS
#
# Starts MEMBERS (1 to 9) of the program ETCD on this machine, with their data below DIRECTORY, runs
# BENCHMARK, which is etcd's own tools/benchmark, with 1, 8, 32 and 128 clients, and stops the
# members. Exit codes: 0 measured, 2 wrong usage.
set -euo pipefail
[[ $# = 4 && $4 =~ ^[1-9]$ ]] || {
  sed -n '5s/^# */usage: /p' "$0" >&2
  exit 2
}
etcd=$1 benchmark=$2 directory=$3 members=$4
cluster='' endpoints='' processes=()
for ((i = 0; i < members; i++)); do
  cluster+=${cluster:+,}m$i=http://127.0.0.1:2380$i
  endpoints+=${endpoints:+,}127.0.0.1:2379$i
done
stop() {
  kill "${processes[@]}"
  wait "${processes[@]}" || true
}
trap stop EXIT
for ((i = 0; i < members; i++)); do
  "$etcd" --name "m$i" --data-dir "$directory/m$i" --initial-cluster "$cluster" \
    --listen-client-urls "http://127.0.0.1:2379$i" --advertise-client-urls "http://127.0.0.1:2379$i" \
    --listen-peer-urls "http://127.0.0.1:2380$i" --initial-advertise-peer-urls "http://127.0.0.1:2380$i" \
    --logger zap --log-level error >"$directory/m$i.log" 2>&1 &
  processes+=($!)
done
sleep 4 # until the members have elected a leader
for clients in 1 8 32 128; do
  echo "$members members, $clients clients:"
  "$benchmark" --endpoints "$endpoints" --conns $((clients < 8 ? clients : 8)) --clients "$clients" \
    txn-put --txn-ops 3 --val-size 256 --key-space-size 1000 --total $((clients < 8 ? 2000 : 10000)) 2>"$directory/benchmark.log" |
    grep -E 'Requests/sec|50% in|99% in'
done
