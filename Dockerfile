# curtsy in a container: `docker build -t curtsy .`; see docs/how-to/docker.md.
#
# Two stages, so that neither pip's leavings nor the sources are in what runs. Every package is an exact version with its
# hash (`make lock` renews them). To pin the base image too, pass the digest that your registry shows for it:
# `docker build --build-arg BASE_DIGEST=sha256:… .`
ARG BASE_DIGEST=

FROM python:3.12-slim${BASE_DIGEST:+@${BASE_DIGEST}} AS build
WORKDIR /src
COPY deploy/constraints.txt deploy/build-constraints.txt ./
RUN python -m venv /opt/curtsy \
    && /opt/curtsy/bin/python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r constraints.txt \
    && python -m pip install --no-cache-dir --disable-pip-version-check --require-hashes -r build-constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir /dist . \
    && /opt/curtsy/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-deps /dist/*.whl

FROM python:3.12-slim${BASE_DIGEST:+@${BASE_DIGEST}}
LABEL org.opencontainers.image.title="curtsy" \
      org.opencontainers.image.description="Fetch the web politely." \
      org.opencontainers.image.licenses="MIT"

# A number, not only a name: whoever checks that a container is not root's can tell by it.
RUN groupadd --system --gid 10001 curtsy \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/curtsy --create-home --shell /usr/sbin/nologin curtsy
COPY --from=build /opt/curtsy /opt/curtsy

# State is in /var/lib/curtsy, copies of pages beside it, settings in /etc/curtsy/curtsy.yaml, if there are any.
ENV PATH=/opt/curtsy/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_STATE_HOME=/var/lib \
    XDG_CONFIG_HOME=/etc \
    CURTSY_CACHE_DIR=/var/lib/curtsy/cache

USER 10001:10001
WORKDIR /var/lib/curtsy
# After the folder is its user's: a new volume takes that over.
VOLUME ["/var/lib/curtsy"]

# SIGTERM has a crawl ask for nothing more, end what is under way and keep the rest: about eight seconds, so give it
# more than the ten that `docker stop` waits. Exec form, for a shell as process 1 would not pass the signal on.
STOPSIGNAL SIGTERM
ENTRYPOINT ["curtsy"]
CMD ["--help"]

# Are the settings right, and can the store be written? It asks nothing of any site.
HEALTHCHECK --interval=5m --timeout=20s --start-period=10s --retries=2 CMD ["curtsy", "doctor", "--json"]
