# The image of Fairgate: every role and command. See docs/image.md.
#
# BASE may be any image with Python 3.11 or newer and its venv module. Both stages use it, because a
# compiled package fits one Python version only. Every package has wheels for amd64 and arm64.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS dependencies
WORKDIR /src
COPY requirements.lock requirements-runtime.lock ./
# /tools is what only the build needs: pip, and setuptools with the hashes of the development lock.
RUN python3 -m venv /tools \
 && sed -n '/^setuptools==/,/[^\\]$/p' requirements.lock >requirements-build.lock \
 && /tools/bin/pip install --no-cache-dir --require-hashes -r requirements-build.lock \
 && python3 -m venv --without-pip /opt/fairgate \
 && /tools/bin/pip --python /opt/fairgate install --no-cache-dir --no-compile \
    --only-binary :all: --require-hashes -r requirements-runtime.lock
# Fairgate reads kubeconfigs with the Kubernetes client library and calls none of its generated
# methods, which are 53 MB (tests/meta/test_image.py). Nor does it load its models, which stay
# without bytecode. Of the CEL extensions it needs three. The bytecode does not depend on the times
# of files.
RUN rm -r /opt/fairgate/lib/python3*/site-packages/kubernetes/client/api \
    /opt/fairgate/lib/python3*/site-packages/kubernetes/aio/client/api \
 && rm /opt/fairgate/lib/python3*/site-packages/cel_expr_python/ext/ext_encoders.*.so \
    /opt/fairgate/lib/python3*/site-packages/cel_expr_python/ext/ext_math.*.so \
    /opt/fairgate/lib/python3*/site-packages/cel_expr_python/ext/ext_proto.*.so \
 && python3 -m compileall -q --invalidation-mode unchecked-hash \
    -x '/kubernetes/(aio/)?client/models/' /opt/fairgate/lib

FROM dependencies AS application
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY app app
RUN /tools/bin/pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /wheel . \
 && /tools/bin/pip --python /opt/fairgate install --no-deps --no-index --no-compile \
    --root /application /wheel/*.whl \
 && python3 -m compileall -q --invalidation-mode unchecked-hash -s /application /application

FROM ${BASE}
ARG VERSION
ARG REVISION
ARG SOURCE
LABEL org.opencontainers.image.title="Fairgate" \
      org.opencontainers.image.description="Fair order for GPU pods on a shared Kubernetes cluster" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
# Two layers: a new version of Fairgate is a pull of the second one, about 3 MB.
COPY --from=dependencies /opt/fairgate /opt/fairgate
COPY --from=application /application /
ENV PATH=/opt/fairgate/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
# ops (/livez, /readyz, /metrics), webhook, REST API
EXPOSE 8080 8443 8444
ENTRYPOINT ["fairgate"]
CMD ["serve"]
