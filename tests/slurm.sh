#!/usr/bin/env bash
# The array script of configs/ under a real Slurm: a controller and one node of Debian's packages in a temporary folder run
# every shard of a sweep, `oasis merge` joins them, and the result is compared byte for byte with the sweep in one piece.
#
#     apt-get install --no-install-recommends slurm-wlm munge
#     cargo build --release && sudo tests/slurm.sh            # OASIS=PROGRAM, SWEEP=FILE, SHARDS=N to change them
#
# It needs root (the daemons start jobs as their owner). Without Slurm or root it prints SKIPPED; OASIS_REQUIRE_SLURM=1 makes
# that a failure. Nothing outside the temporary folder is written, and no running Slurm is touched.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export OASIS=${OASIS:-$root/target/release/oasis}
sweep=$(realpath "${SWEEP:-$root/configs/sweep-nano.toml}")
shards=${SHARDS:-3}
export PATH=$PATH:/usr/sbin:/sbin

skip() {
    echo "SKIPPED slurm: $*"
    echo "0 checks, 1 skipped"
    exit "${OASIS_REQUIRE_SLURM:-0}"
}
for program in munged slurmctld slurmd sbatch; do
    command -v $program >/dev/null || skip "$program is not installed (apt-get install slurm-wlm munge)"
done
[ "$(id -u)" = 0 ] || skip "the daemons need root"
[ -x "$OASIS" ] || { echo "$OASIS is no program: build it, or name another with OASIS"; exit 1; }

home=$(mktemp -d)
daemons=()
finish() {
    status=$?
    if [ $status != 0 ]; then tail -n 15 "$home"/*.log || true; fi
    for ((i = ${#daemons[@]} - 1; i >= 0; i--)); do
        kill "${daemons[i]}" 2>/dev/null || true
        wait "${daemons[i]}" 2>/dev/null || true
    done
    rm -rf "$home"
}
trap finish EXIT
chmod 755 "$home" # munge refuses a socket that others can't reach
mkdir "$home/state" "$home/spool"
head -c 1024 /dev/urandom >"$home/munge.key"
chmod 600 "$home/munge.key"

node=$(hostname -s)
port=$((20000 + RANDOM % 10000))
memory=$(awk '/MemTotal/ { print int($2 / 1024 * 0.9) }' /proc/meminfo)
cat >"$home/slurm.conf" <<END
ClusterName=oasis
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$home/munge.socket
CredType=cred/munge
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool
SlurmctldPidFile=$home/slurmctld.pid
SlurmdPidFile=$home/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$memory
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
echo "CgroupPlugin=cgroup/v1" >"$home/cgroup.conf"
export SLURM_CONF=$home/slurm.conf

start() { # name, command...
    local name=$1
    shift
    "$@" >>"$home/$name.log" 2>&1 &
    daemons+=($!)
}
start munged munged --foreground --force --key-file="$home/munge.key" --socket="$home/munge.socket" \
    --pid-file="$home/munged.pid" --seed-file="$home/munge.seed"
for _ in $(seq 50); do [ -S "$home/munge.socket" ] && break; sleep 0.1; done
start slurmctld slurmctld -D -f "$SLURM_CONF"
start slurmd slurmd -D -f "$SLURM_CONF" -N "$node"
for _ in $(seq 60); do
    [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ] && break
    sleep 0.5
done
sinfo
[ "$(sinfo --noheader --format=%T)" = idle ] || { echo "the node did not become idle"; exit 1; }

cd "$home"
sbatch --wait --array="1-$shards" --cpus-per-task=1 --mem=1G --time=10 "$root/configs/slurm-array.sh" "$sweep" "$home/parts"
done=$(cat oasis-sweep-*.log | grep -c '^shard ')
[ "$done" = "$shards" ] || { echo "$done of $shards tasks came to their end"; exit 1; }
"$OASIS" merge "$home"/parts/shard-*-of-"$shards"/* -o "$home/merged" >/dev/null
"$OASIS" sweep "$sweep" -o "$home/whole" >/dev/null

cd "$home/whole"
compared=0
while IFS= read -r -d '' file; do
    cmp "$file" "$home/merged/$file"
    compared=$((compared + 1))
done < <(find . \( -name samples.jsonl -o -name layers.jsonl -o -name config.toml -o -name fingerprint.json -o -name sweep.json \) -print0)
[ "$compared" -ge 5 ] || { echo "only $compared files were compared"; exit 1; }
# Times and memory are the machine's; all else of the results is not.
for side in whole merged; do
    python3 - "$home/$side"/*/results.json >"$home/$side.json" <<'END'
import json, sys
results = json.load(open(sys.argv[1]))
for run in results["runs"]:
    run["results"]["machine"] = None
json.dump(results, sys.stdout)
END
done
cmp "$home/whole.json" "$home/merged.json"
echo "ok: $shards array tasks of Slurm $(sinfo --version | cut -d' ' -f2), merged; $((compared + 1)) files equal those of the sweep in one piece"
