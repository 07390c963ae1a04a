# Gateway and worker in one image: TURNPIKE_ROLE says which; docker-compose.yml runs both beside a Redis. Any base with
# Node 24 and npm will do; this is the version that the tests run on (package.json, optionalDependencies).
ARG NODE_IMAGE=node:24.22.3-bookworm-slim
FROM ${NODE_IMAGE}

WORKDIR /app
COPY package.json package-lock.json .npmrc ./
# With the optional packages, which hold native parts; but the image has a Node of its own already.
RUN npm ci --omit=dev --include=optional \
  && rm -rf node_modules/node-linux-* node_modules/.bin/node \
  && npm cache clean --force
# What the configuration reads beside itself (file('prompts/…')) needs a line here and in .dockerignore.
COPY turnpike.config.ts LICENSE ./
COPY src ./src
COPY routes ./routes
COPY workers ./workers

ENV NODE_ENV=production HOST=0.0.0.0 PORT=8080
EXPOSE 8080
USER 1000:1000

# Both roles: a worker listens for this, and for its metrics, because PORT is set.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.PORT}/readyz`).then(({ ok }) => process.exit(ok ? 0 : 1), () => process.exit(1))"]

# Node itself, not npm: it gets the signals, and a SIGTERM is a drain.
CMD ["node", "src/main.ts"]
