# syntax=docker/dockerfile:1
# SRL in a container: docs/how-to/containers.md.
#
#   docker build --target base -t srl .      # what `make train` installs
#   docker build --target all -t srl:all .   # with all optional packages
#   docker run --rm --shm-size=2g srl train cartpole

FROM python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/srl
# Packages first, so that a change of the source does not install them again.
COPY constraints.txt pyproject.toml README.md LICENSE ./
RUN pip install -c constraints.txt torch
COPY src ./src
RUN pip install -c constraints.txt .
RUN useradd --create-home --home-dir /srv/srl --uid 1000 srl
USER srl
# Runs are written to ./runs: mount a folder of uid 1000 there to keep them.
WORKDIR /srv/srl
# Workers share memory in /dev/shm. Docker gives 64 MB: `--shm-size=2g` gives more.
ENTRYPOINT ["srl"]
CMD ["--help"]

FROM base AS all
USER root
# What MuJoCo renders videos with on a machine without a screen; wget, with which KubeRay asks Ray
# whether it is well.
RUN apt-get update && apt-get install -y --no-install-recommends libegl1 libgl1 libosmesa6 wget \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/srl
# Every extra but those of development.
RUN extras=$(python -c "import tomllib; found = tomllib.load(open('pyproject.toml', 'rb')); \
    print(','.join(sorted({*found['project']['optional-dependencies']} - {'dev', 'docs'})))") \
    && pip install -c constraints.txt ".[$extras]"
USER srl
WORKDIR /srv/srl
