#!/bin/sh
# Segment parallelism under Slurm: a worker each GPU, the first combines; the router runs with the first.
#   sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-task 1 tools/deploy/slurm.sh MODEL
# Nodes must reach each other on ports 7001 and up, and on those that the system chooses for residues.
#SBATCH --job-name hypic
set -eu
export HYPIC_MODEL=${1:-Qwen/Qwen3.5-35B-A3B}
export HYPIC=${HYPIC:-build/release/hypic}
# Slurm shows a task its own GPU alone, so every worker uses the first one that it sees.
exec srun --gpu-bind=single:1 sh -c '
  set -eu
  listen=$(hostname):$((7001 + SLURM_LOCALID))
  if [ "$SLURM_PROCID" -ne 0 ]; then
    exec "$HYPIC" worker --role scatter --model "$HYPIC_MODEL" --backend cuda --listen "$listen"
  fi
  "$HYPIC" worker --role combine --model "$HYPIC_MODEL" --backend cuda --listen "$listen" --data "$(hostname):0" &
  worker=$!
  trap "kill $worker" EXIT
  "$HYPIC" router --model "$HYPIC_MODEL" --bootstrap slurm --host 0.0.0.0 --port 8000 \
    ${HYPIC_KEY_FILE:+--api-key-file "$HYPIC_KEY_FILE"}
'
