# Two images, of the same wheel:
#   docker build --target cpu  -t millstream .        Brook, on any machine
#   docker build --target cuda -t millstream:cuda .   Wan models, on an NVIDIA GPU
# Both serve on port 8000 as a user without rights, keep what is kept in /data, and need MILLSTREAM_API_KEY.

FROM python:3.12-slim AS wheel
WORKDIR /source
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt setuptools
COPY LICENSE README.md pyproject.toml ./
COPY millstream millstream
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .


# nvcc and a C compiler come with it: the fast path builds a convolution and Triton its launchers on first use.
FROM nvidia/cuda:13.0.0-devel-ubuntu24.04 AS cuda
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ffmpeg python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/millstream
ENV PATH=/opt/millstream/bin:$PATH
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
COPY constraints-gpu.txt /constraints.txt
RUN pip install --no-cache-dir -c /constraints.txt torch --extra-index-url https://download.pytorch.org/whl/cu130
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir -c /constraints.txt "$(echo /wheels/*.whl)[gpu]"
RUN useradd --create-home --uid 10001 millstream && mkdir /data && chown 10001 /data
USER 10001
WORKDIR /data
ENV MILLSTREAM_HOME=/weights
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=5m CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
ENTRYPOINT ["millstream"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--data", "/data"]


FROM python:3.12-slim AS cpu
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ffmpeg \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /constraints.txt
RUN pip install --no-cache-dir -c /constraints.txt torch --extra-index-url https://download.pytorch.org/whl/cpu
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir -c /constraints.txt "$(echo /wheels/*.whl)[serve]"
RUN useradd --create-home --uid 10001 millstream && mkdir /data && chown 10001 /data
USER 10001
WORKDIR /data
ENV MILLSTREAM_HOME=/weights
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=5m CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz', timeout=5)"]
ENTRYPOINT ["millstream"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--data", "/data"]
