# Container images; docs/images.md. For example: make cluster_docker CLUSTER_REPOS=us-central2
#
# CLUSTER_REPOS        regions; default: every region in which a cluster of the fleet file runs the image
# VLLM=1 CUDA=1 STAGING=1 AIRFLOW=1    another image than the clusters' usual one
# TAG_VERSIONS         the tags that are pushed; FLEET_TAG: the one of them that the fleet file names
# default_registry_name    only repositories of this name; default: those that the fleet file names
# BASE, GCLOUD_VERSION     build arguments
# PIP_CONF, CA_CERTIFICATES, APT_SOURCES    files that single steps of a build see, and no layer has
# BUILDER              docker, podman or buildah
# DRY_RUN=1            only print the commands
CLUSTER_REPOS =
default_registry_name =
BUILDER = docker
FLEET = infra/fleet.yaml
GIT_HASH = $(shell git describe --always --dirty --abbrev=7 --exclude='*')
TAG_DATE = $(shell date -u +%Y%m%d)
TAG_VERSIONS = latest $(GIT_HASH) $(TAG_DATE)
FLEET_TAG = $(GIT_HASH)
IMAGE = $(if $(VLLM),vllm,$(if $(CUDA),cuda,$(if $(STAGING),staging,$(if $(AIRFLOW),airflow,cluster))))

IMAGES = $(BIN)/python -m scripts.images --image $(IMAGE) --fleet $(FLEET) --builder $(BUILDER) \
    --regions "$(CLUSTER_REPOS)" --repository "$(default_registry_name)" \
    --tags "$(TAG_VERSIONS)" --fleet-tag "$(FLEET_TAG)" \
    $(foreach name,BASE GCLOUD_VERSION,$(if $(filter undefined,$(origin $(name))),,--build-arg "$(name)=$($(name))")) \
    $(if $(PIP_CONF),--secret "pip_conf=$(PIP_CONF)") \
    $(if $(CA_CERTIFICATES),--secret "ca_certificates=$(CA_CERTIFICATES)") \
    $(if $(APT_SOURCES),--secret "apt_sources=$(APT_SOURCES)") \
    $(if $(REGISTRY),--registry "$(REGISTRY)") $(if $(DRY_RUN),--dry-run)

SHELL_SCRIPTS = $(wildcard .ci/run scripts/*.sh docker/*.sh)

.PHONY: cluster_docker cluster_docker_build cluster_docker_tag cluster_docker_push cluster_tag \
    configure_gcp_registry_all get_ray_auth_token get_ray_auth_token_staging init_ray_auth_token_secret \
    dev_setup lint images-test

cluster_docker: init ## build an image, push it, and let the fleet file name its tag where it was pushed (docs/images.md)
	$(IMAGES) build tag push name

cluster_docker_build: init ## build an image and tag it for each region
	$(IMAGES) build tag

cluster_docker_tag: init ## tag the image that was built, for each region
	$(IMAGES) tag

cluster_docker_push: init ## push the tagged image; repositories are made where they are missing
	$(IMAGES) push

cluster_tag: init ## let the fleet file name FLEET_TAG for an image, such as an older one to go back to
	$(IMAGES) name

configure_gcp_registry_all: init ## let every registry delete what is older than 30 days, but for the newest 16
	$(BIN)/tradewind registry set-cleanup-policy $(default_registry_name) --all --fleet $(FLEET)

get_ray_auth_token: init ## fetch the token of the default cluster into ~/.ray/auth_token, where Ray itself looks
	$(BIN)/tradewind cluster auth-env --home --fleet $(FLEET)

get_ray_auth_token_staging: init ## the same of the staging cluster
	$(BIN)/tradewind cluster auth-env us-central2-staging --fleet $(FLEET)

init_ray_auth_token_secret: init ## create the token's secret, once; TOKEN_FILE=~/.ray/auth_token takes a token of Ray's
	$(BIN)/tradewind cluster $(if $(TOKEN_FILE),set-token --file '$(TOKEN_FILE)',init-token) --fleet $(FLEET)

dev_setup: init ## commit hooks, gcloud's login, the SSH key of the clusters, and their token in ~/.ray/auth_token
	$(BIN)/pre-commit install
	scripts/dev_setup.sh $(BIN)/python $(FLEET)

lint: check ## check, and also look at shell scripts, Dockerfiles' rules and compose.yaml
	$(BIN)/shellcheck $(SHELL_SCRIPTS)
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml
	$(BIN)/check-jsonschema --schemafile infra/fleet.schema.json infra/fleet.yaml
	$(BIN)/tradewind cluster update-configs --check --fleet $(FLEET)
	$(BIN)/tradewind cluster validate infra/clusters/*.yaml

images-test: init ## build images for real on a base from debootstrap, start them, push to a registry on loopback
	scripts/install_image_tools.sh
	BUILD_IMAGES="$${BUILD_IMAGES:-yes}" $(BIN)/python -m pytest -s tests/images $(ARGS)
