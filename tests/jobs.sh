#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The job scripts against stand-ins for srun, mpirun, scontrol, qsub, docker, apptainer and apt-get: what they start,
# with which arguments, and what they do with the exit status.
set -u
jobs=$(cd "${srcdir:-.}/../jobs" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
count=0 failed=0

check() {                                    # check WHAT COMMAND...: one result, the command's status
    what=$1
    shift
    count=$((count + 1))
    if "$@" >"$dir/out" 2>&1; then
        echo "ok $count - $what"
    else
        failed=$((failed + 1))
        echo "not ok $count - $what"
        sed 's/^/# /' "$dir/out" "$dir/log" "$dir/stdout" 2>/dev/null
    fi
}

# A stand-in writes its name and arguments to the log, one line, and exits with FAKE_RC (scontrol and qsub: 0).  With
# FAKE_SLEEP it first waits for a signal.
mkdir "$dir/bin" "$dir/hide" "$dir/model"
cat >"$dir/fake" <<'FAKE'
#!/bin/bash
name=${0##*/}
echo "$name $*" >>"$FAKE_LOG"
case $name in
scontrol|qsub|docker|apptainer|apt-get) exit 0 ;;
nvidia-smi) printf 'GPU 0: x\nGPU 1: x\nGPU 2: x\n'; exit 0 ;;
esac
if [ -n "${FAKE_SLEEP:-}" ]; then
    trap 'echo "$name USR1" >>"$FAKE_LOG"; exit 75' USR1
    trap 'exit 143' TERM
    echo ready >"$FAKE_LOG.ready"
    sleep 20 & wait $!
fi
exit "${FAKE_RC:-0}"
FAKE
chmod +x "$dir/fake"
for name in srun mpirun scontrol qsub; do
    cp "$dir/fake" "$dir/bin/$name"
done
for name in docker apptainer nvidia-smi apt-get; do
    cp "$dir/fake" "$dir/hide/$name"
done
printf 'a\na\nb\nb\n' >"$dir/nodes"
FAKE_LOG=$dir/log
export FAKE_LOG PATH="$dir/bin:$PATH"
unset SLURM_JOB_END_TIME SLURM_GPUS_PER_NODE SLURM_GPUS_ON_NODE SLURM_CPUS_PER_TASK SLURM_MPI_TYPE SLURM_RESTART_COUNT
unset LONGFILL OPTIONS RANKS MPIRUN

start() {                                    # start STATUS VAR=value... SCRIPT ARGS: runs, true if it exits with STATUS
    want=$1
    shift
    : >"$dir/log"
    rc=0
    env "$@" >"$dir/stdout" 2>&1 </dev/null || rc=$?
    [ "$rc" = "$want" ] || { echo "exit status $rc, expected $want"; return 1; }
}
logged() { grep -qxF -- "$1" "$dir/log"; }   # this exact line
starts() { grep -q -- "$1" "$dir/log"; }     # a line that matches
calls() { [ "$(grep -c "^$1 " "$dir/log")" = "$2" ]; }

for name in quickstart check lib.sh slurm slurm-array pbs lsf mpirun container; do
    check "$name is valid bash" bash -n "$jobs/$name"
done
check "pbs: limit is its walltime" \
    sh -c "grep -q '^#PBS -l walltime=04:00:00' '$jobs/pbs' && grep -qx 'limit=14400' '$jobs/pbs'"
check "lsf: limit is its -W" sh -c "grep -q '^#BSUB -W 4:00' '$jobs/lsf' && grep -qx 'limit=14400' '$jobs/lsf'"

# slurm
run="prefill -m $dir/model -i in.jsonl -o out"
slurm="bash $jobs/slurm $dir/model in.jsonl out"
check "slurm: done" start 0 SLURM_JOB_ID=12 $slurm --logits none
check "slurm: one srun, peers visible" logged \
    "srun --mpi=pmix --kill-on-bad-exit=0 --wait=60 --gpu-bind=none longfill $run --logits none"
check "slurm: nothing requeued" calls scontrol 0
check "slurm: 75 exits 75" start 75 SLURM_JOB_ID=12 FAKE_RC=75 $slurm
check "slurm: and requeues the job" logged "scontrol requeue 12"
check "slurm: a failure is a failure" start 1 SLURM_JOB_ID=12 FAKE_RC=1 $slurm
check "slurm: not requeued" calls scontrol 0
check "slurm: some prompts failed" start 3 SLURM_JOB_ID=12 FAKE_RC=3 $slurm
check "slurm: gives up after 50 restarts" start 1 SLURM_JOB_ID=12 SLURM_RESTART_COUNT=50 FAKE_RC=75 $slurm
check "slurm: without a requeue" calls scontrol 0
check "slurm: knows its time limit" start 0 SLURM_JOB_ID=12 SLURM_JOB_END_TIME=$(($(date +%s) + 1300)) $slurm
check "slurm: and keeps a margin of 300 s" starts "-o out --max-seconds \(99[0-9]\|1000\)$"
check "slurm: but not against the user's" start 0 SLURM_JOB_ID=12 SLURM_JOB_END_TIME=$(($(date +%s) + 1300)) \
    SLURM_GPUS_PER_NODE=8 $slurm --pcp 8 --max-seconds 60
check "slurm: and GPUs asked for are used" starts "longfill $run --device cuda --pcp 8 --max-seconds 60$"
check "slurm: however they were asked for" start 0 SLURM_JOB_ID=12 SLURM_GPUS_ON_NODE=8 $slurm --pcp 8
check "slurm: they are" starts "longfill $run --device cuda --pcp 8$"
check "slurm: none are none" start 0 SLURM_JOB_ID=12 SLURM_GPUS_PER_NODE=0 $slurm --pcp 8
check "slurm: and are not asked for" starts "longfill $run --pcp 8$"
check "slurm: unless the user says otherwise" start 0 SLURM_JOB_ID=12 SLURM_GPUS_PER_NODE=8 $slurm --device=cpu
check "slurm: one --device" starts "longfill $run --device=cpu$"
check "slurm: usage" start 2 bash "$jobs/slurm" model
for name in slurm slurm-array mpirun; do
    check "$name: the usage has a grid, and plan" start 2 bash "$jobs/$name"
    check "$name: both" sh -c "grep -q 'OUTPUT --pcp [28] ' '$dir/stdout' && grep -q '^first: longfill plan ' '$dir/stdout'"
done

signalled() {                                # signalled SIGNAL STATUS env VAR=value... SCRIPT: once the launcher is up
    sig=$1 want=$2
    shift 2
    : >"$dir/log"
    rm -f "$dir/log.ready"
    FAKE_SLEEP=1 "$@" >"$dir/stdout" 2>&1 &
    job=$!
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        [ -f "$dir/log.ready" ] && break
        sleep 0.2
    done
    kill -"$sig" $job
    rc=0
    wait $job || rc=$?
    [ $rc = "$want" ] || { echo "exit status $rc, expected $want"; return 1; }
}
check "slurm: USR1 stops it early" signalled USR1 75 env SLURM_JOB_ID=12 $slurm
check "slurm: it reached srun while it ran" logged "srun USR1"
check "slurm: and the job is requeued" logged "scontrol requeue 12"
check "slurm: TERM ends the job" signalled TERM 143 env SLURM_JOB_ID=12 $slurm
check "slurm: for good" calls scontrol 0

# slurm-array
array="SLURM_ARRAY_JOB_ID=77 SLURM_ARRAY_TASK_MIN=2 SLURM_ARRAY_TASK_MAX=8 SLURM_ARRAY_TASK_STEP=2"
array="$array SLURM_ARRAY_TASK_COUNT=4"
elem="bash $jobs/slurm-array $dir/model in.jsonl $dir/array"
check "slurm-array: one element stopped early" start 75 $array SLURM_JOB_ID=80 SLURM_ARRAY_TASK_ID=6 FAKE_RC=75 $elem
check "slurm-array: has its share and directory" starts \
    "-i in.jsonl -o $dir/array/shard-002 --shard 2/4$"
check "slurm-array: requeues the element alone" logged "scontrol requeue 77_6"
check "slurm-array: made its directory" test -d "$dir/array/shard-002"
check "slurm-array: an array with holes is refused" start 2 $array SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_ID=6 $elem
check "slurm-array: before anything starts" calls srun 0

# pbs, lsf
vars="MODEL=$dir/model INPUT=in.jsonl OUTPUT=out"
pbs="$vars PBS_NODEFILE=$dir/nodes PBS_JOBID=5.srv PBS_O_WORKDIR=$dir NCPUS=8 bash $jobs/pbs"
check "pbs: done" start 0 $pbs
check "pbs: a rank per slot" logged "mpirun -n 4 --hostfile $dir/nodes --bind-to none -x HDF5_USE_FILE_LOCKING \
-x OMP_NUM_THREADS=4 longfill $run --device cuda --max-seconds 14100"
check "pbs: options" start 0 OPTIONS="--device cpu --max-seconds=60 --pcp 2" $pbs
check "pbs: none against the user's" starts "longfill $run --device cpu --max-seconds=60 --pcp 2$"
check "pbs: without a model it says how" start 1 PBS_NODEFILE="$dir/nodes" bash "$jobs/pbs"
check "pbs: with a grid" grep -q "OPTIONS=--pcp=8 pbs" "$dir/stdout"
check "pbs: stopped early" start 75 FAKE_RC=75 $pbs
check "pbs: submits itself again" logged \
    "qsub -W depend=afterany:5.srv -v MODEL,INPUT,OUTPUT,OPTIONS,LONGFILL,RESTARTS $jobs/pbs"
check "pbs: not for ever" start 75 FAKE_RC=75 RESTARTS=50 $pbs
check "pbs: no further job" calls qsub 0
check "pbs: TERM at the limit stops it early" signalled TERM 75 env $pbs
check "pbs: through mpirun" logged "mpirun USR1"
lsf="$vars LSB_DJOB_HOSTFILE=$dir/nodes bash $jobs/lsf"
check "lsf: stopped early leaves 75 to LSF" start 75 FAKE_RC=75 OMP_NUM_THREADS=3 OPTIONS=--logprobs $lsf
check "lsf: a rank per slot, options passed on" logged "mpirun -n 4 --hostfile $dir/nodes --bind-to none \
-x HDF5_USE_FILE_LOCKING -x OMP_NUM_THREADS=3 longfill $run --device cuda --max-seconds 14100 --logprobs"
check "lsf: options" start 0 OPTIONS="--max-seconds 60" $lsf
check "lsf: none against the user's" starts "longfill $run --device cuda --max-seconds 60$"
check "lsf: its warning stops it early" signalled USR1 75 env $lsf
check "lsf: requeues on 75" grep -qx '#BSUB -Q "75"' "$jobs/lsf"

# mpirun, container
local="bash $jobs/mpirun $dir/model in.jsonl out"
check "mpirun: chosen ranks" start 75 RANKS=5 FAKE_RC=75 $local
check "mpirun: started so" logged "mpirun -n 5 --oversubscribe --bind-to none longfill $run"
check "mpirun: USR1 stops it early" signalled USR1 75 $local
check "mpirun: TERM ends it" signalled TERM 143 $local
check "mpirun: one rank per GPU" start 0 PATH="$dir/hide:$PATH" $local
check "mpirun: counted with nvidia-smi, and used" starts "^mpirun -n 3 .* longfill $run --device cuda$"
check "container: docker runs it" start 0 PATH="$dir/hide:$PATH" ENGINE=docker RANKS=2 \
    bash "$jobs/container" run "$dir/model" "$dir/nodes" "$dir/cout" -q
check "container: same paths inside" starts "^docker run .* --volume=$dir/model:$dir/model:ro .* longfill mpirun -n 2 .*\
 longfill prefill -m $dir/model -i $dir/nodes -o $dir/cout -q$"
check "container: the folder of the prompts, for their files; the output can be written" \
    starts " --volume=$dir:$dir:ro --volume=$dir/model:$dir/model:ro --volume=$dir/cout:$dir/cout longfill mpirun"
mkdir -p "$dir/hub/blobs" "$dir/hub/snapshots/x" && : >"$dir/hub/blobs/12ab" && : >"$dir/hub/blobs/34cd"
ln -s ../../blobs/12ab "$dir/hub/snapshots/x/config.json"
ln -s ../../blobs/34cd "$dir/hub/snapshots/x/model.safetensors"
check "container: a model of links" start 0 PATH="$dir/hide:$PATH" ENGINE=apptainer \
    bash "$jobs/container" run "$dir/hub/snapshots/x" "$dir/nodes" "$dir/cout"
check "container: with what they lead to" starts "--bind=$dir:$dir:ro --bind=$dir/hub/blobs:$dir/hub/blobs:ro \
--bind=$dir/hub/snapshots/x:$dir/hub/snapshots/x:ro --bind=$dir/cout:$dir/cout "
check "container: apptainer builds it" start 0 PATH="$dir/hide:$PATH" SIF=x.sif bash "$jobs/container" build
check "container: from its recipe" logged "apptainer build --force x.sif jobs/longfill.def"
check "container: usage" start 2 ENGINE=docker bash "$jobs/container"

# installation: one list; nothing to do, as root, without rights
lib() {                                      # lib INSTALLED ID: lf_install where dpkg-query knows INSTALLED
    printf '#!/bin/sh\ncase " %s " in *" $4 "*) echo installed ;; *) exit 1 ;; esac\n' "$1" >"$dir/sys/dpkg-query"
    printf '#!/bin/sh\necho %s\n' "$2" >"$dir/sys/id"
    printf '#!/bin/sh\nexit 1\n' >"$dir/sys/sudo"
    chmod +x "$dir"/sys/*
    env -u LONGFILL_NO_INSTALL PATH="$dir/sys:$dir/hide:$PATH" bash -euc ". '$jobs/lib.sh'; lf_install" </dev/null
}
mkdir "$dir/sys"
packages=$(bash -c ". '$jobs/lib.sh'; echo \$lf_packages")
some=$(echo " $packages " | sed 's/ libjansson-dev / /')
: >"$dir/log"
check "install: nothing is missing" lib "$packages" 0
check "install: apt-get was not called" calls apt-get 0
check "install: as root" lib "$some" 0
check "install: what is missing" starts "^apt-get .* install -y --no-install-recommends libjansson-dev$"
: >"$dir/log"
without_rights() { ! lib "$some" 1000 2>"$dir/said"; }
check "install: without rights it stops" without_rights
check "install: and prints the one command" grep -qF "sudo apt-get install libjansson-dev" "$dir/said"
check "install: apt-get was not called" calls apt-get 0

echo "1..$count"
[ $failed = 0 ]
