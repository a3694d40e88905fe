FROM python:3.11-slim

# A C++ compiler makes the CPU engine faster, and the GPU kernels are built on first use.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# Its home is the volume: compiled kernels and packed models are kept there from one start to the next.
RUN useradd --no-create-home --home-dir /data --uid 10001 tokenmill \
    && install -d -o tokenmill -g tokenmill /data /data/models

WORKDIR /app
# Dependencies come first: a change in our code leaves their layer as it is.
COPY pyproject.toml README.md LICENSE constraints.txt ./
RUN mkdir engine runner web migrations \
    && pip install --no-cache-dir -c constraints.txt . \
    && pip uninstall -y tokenmill
COPY engine engine
COPY runner runner
COPY web web
COPY migrations migrations
RUN pip install --no-cache-dir --no-deps .

USER tokenmill
ENV PYTHONUNBUFFERED=1 TOKENMILL_DATA_DIR=/data
WORKDIR /data
VOLUME /data
EXPOSE 8080

# Alone, the image is a whole installation with embedded services; compose gives other commands.
CMD ["tokenmill", "up", "--host", "0.0.0.0"]
