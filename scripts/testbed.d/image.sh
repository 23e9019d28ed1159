# Container images from scratch: one layer of given files, as an OCI archive in the cache. Needs tar, no container tool.
# shellcheck shell=bash source-path=SCRIPTDIR
source "$ROOMS/programs.sh"

image_usage() {
  cat <<'USAGE'
usage: scripts/testbed image NAME:TAG --file SOURCE=DEST... [OPTION...] --entrypoint WORD...

Prints the path of an OCI archive (`ctr images import`, `scripts/testbed load`). An archive of the same content is
made once.

  --file SOURCE=DEST     a file of this machine at an absolute path in the image; keeps its executable bit
  --link TARGET=DEST     a symbolic link
  --tmp DIR              an empty directory that everyone may write to
  --user UID[:GID]       who runs it; default root
  --label NAME=VALUE     may be repeated
  --env NAME=VALUE       may be repeated; PATH defaults to /usr/local/bin:/usr/bin:/bin
  --entrypoint WORD...   all words that follow are the entrypoint; last option
USAGE
}

# image_reference NAME:TAG: the full form that container runtimes compare.
image_reference() {
  local first=${1%%/*}
  if [[ $1 != */* ]]; then
    printf 'docker.io/library/%s' "$1"
  elif [[ $first == *[.:]* || $first == localhost ]]; then
    printf '%s' "$1"
  else
    printf 'docker.io/%s' "$1"
  fi
}

# json_list WORD...: the words as a JSON list of strings.
json_list() {
  local word out=''
  for word in "$@"; do
    word=${word//\\/\\\\}
    out+=${out:+,}\"${word//\"/\\\"}\"
  done
  printf '[%s]' "$out"
}

# json_map NAME=VALUE...: the pairs as a JSON object of strings.
json_map() {
  local pair out=''
  for pair in "$@"; do
    pair=${pair//\\/\\\\}
    pair=${pair//\"/\\\"}
    out+=${out:+,}\"${pair%%=*}\":\"${pair#*=}\"
  done
  printf '{%s}' "$out"
}

# blob FILE: moves FILE into blobs/sha256 of the current directory under its digest; sets DIGEST and SIZE.
blob() {
  read -r DIGEST _ < <(sha256sum -- "$1")
  SIZE=$(stat -c %s -- "$1")
  mv -- "$1" "blobs/sha256/$DIGEST"
}

# image_archive NAME:TAG OPTION...: sets ARCHIVE.
image_archive() {
  local name=$1 files=() links=() tmps=() labels=() environment=(PATH=/usr/local/bin:/usr/bin:/bin) user='' entrypoint=() pair key file
  shift
  while [[ $# -gt 0 ]]; do
    case $1 in
    --entrypoint)
      shift
      entrypoint=("$@")
      break
      ;;
    --file) files+=("$2") ;;
    --link) links+=("$2") ;;
    --tmp) tmps+=("$2") ;;
    --env) environment+=("$2") ;;
    --label) labels+=("$2") ;;
    --user) user=$2 ;;
    *) die "unknown option of image: $1" ;;
    esac
    need_value "$@"
    shift 2
  done
  [[ ${#files[@]} -gt 0 && ${#entrypoint[@]} -gt 0 ]] || die 'an image needs --file and --entrypoint'
  for pair in "${files[@]}"; do
    [[ $pair == *=/* && -r ${pair%=*} ]] || die "--file wants SOURCE=/DEST with a readable source, not $pair"
  done

  key=$({
    printf '%s\n' 2 "$name" "$(uname -m)" "$user" "${files[@]##*=}" -- "${links[@]}" -- "${tmps[@]}" "${labels[@]/#/label }" -- "${environment[@]}" -- "${entrypoint[@]}"
    sha256sum -- "${files[@]%=*}" | cut -d' ' -f1
  } | sha256sum | cut -c1-16)
  cache_folder images
  file=${name//[^a-zA-Z0-9.]/_}
  ARCHIVE=$CACHE/images/$file-$key.tar
  if [[ -s $ARCHIVE ]]; then
    touch -- "$ARCHIVE"
    return
  fi

  # Each build of a program makes another archive: those that served nobody for a day go, and stages of killed runs.
  find "$CACHE/images" -maxdepth 1 \( -name "$file-*.tar" -o -name '.stage.*' \) -mmin +1440 -exec rm -rf -- {} +
  local stage
  stage=$(mktemp -d -- "$CACHE/images/.stage.XXXXXX")
  # A subshell, so that the stage goes whatever fails.
  (
    trap 'rm -rf -- "$stage"' EXIT
    cd "$stage"
    mkdir -p root blobs/sha256
    for pair in "${files[@]}"; do
      mkdir -p "root$(dirname -- "${pair##*=}")"
      cp -- "${pair%=*}" "root${pair##*=}"
      chmod u=rwX,go=rX "root${pair##*=}"
    done
    for pair in "${links[@]}"; do
      mkdir -p "root$(dirname -- "${pair##*=}")"
      ln -s -- "${pair%=*}" "root${pair##*=}"
    done
    for pair in "${tmps[@]}"; do
      mkdir -p "root$pair"
      chmod 1777 "root$pair"
    done
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=go-w -C root -cf layer .
    for pair in "${tmps[@]}"; do
      # --mode above took the write bit from these as well; later entries of an archive count.
      tar --mtime=@0 --owner=0 --group=0 --numeric-owner --no-recursion -C root -rf layer ".$pair"
    done
    image_pack "$name" "$user"
    tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf "archive" blobs oci-layout index.json manifest.json
    mv -- archive "$ARCHIVE"
  ) || die "the image $name could not be made"
  say "made the image $name: $ARCHIVE"
}

# image_pack NAME USER: the OCI files around `layer` in the current directory.
image_pack() {
  local machine config layer_digest layer_size config_digest config_size
  case $(uname -m) in
  x86_64) machine=amd64 ;;
  aarch64) machine=arm64 ;;
  *) machine=$(uname -m) ;;
  esac
  blob layer
  layer_digest=$DIGEST layer_size=$SIZE
  config="\"Env\":$(json_list "${environment[@]}"),\"Entrypoint\":$(json_list "${entrypoint[@]}")"
  [[ ${#labels[@]} -eq 0 ]] || config+=",\"Labels\":$(json_map "${labels[@]}")"
  [[ -z $2 ]] || config+=",\"User\":\"$2\""
  printf '{"architecture":"%s","os":"linux","config":{%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$machine" "$config" "$layer_digest" >config
  blob config
  config_digest=$DIGEST config_size=$SIZE
  printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:%s","size":%s},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:%s","size":%s}]}' \
    "$config_digest" "$config_size" "$layer_digest" "$layer_size" >manifest
  blob manifest
  printf '{"imageLayoutVersion":"1.0.0"}' >oci-layout
  printf '{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:%s","size":%s,"platform":{"architecture":"%s","os":"linux"},"annotations":{"org.opencontainers.image.ref.name":"%s","io.containerd.image.name":"%s"}}]}' \
    "$DIGEST" "$SIZE" "$machine" "${1##*:}" "$(image_reference "$1")" >index.json
  # The same for `docker load`, which knows no other list where images are kept by Docker itself, as in minikube by default.
  printf '[{"Config":"blobs/sha256/%s","RepoTags":["%s"],"Layers":["blobs/sha256/%s"]}]' "$config_digest" "$1" "$layer_digest" >manifest.json
}

# The images that the node itself and the etcd examples need. Each sets ARCHIVE.
pause_archive() {
  program catatonit
  image_archive "$PAUSE_IMAGE" --file "$FOUND=/pause" --entrypoint /pause -P
}

coredns_archive() {
  program coredns own
  image_archive "$COREDNS_IMAGE" --file "$FOUND=/coredns" --entrypoint /coredns
}

etcd_archive() {
  local server
  program etcd-3.6 own
  server=$FOUND
  program etcdctl-3.6 own
  # As in the image of the etcd project: both programs on PATH, no shell.
  image_archive "$1" --file "$server=/usr/local/bin/etcd" --file "$FOUND=/usr/local/bin/etcdctl" --entrypoint /usr/local/bin/etcd
}

PAUSE_IMAGE=localhost/etcd-guard-testbed/pause:1
COREDNS_IMAGE=localhost/etcd-guard-testbed/coredns:1

image_main() {
  if [[ ${1---help} == --help ]]; then
    image_usage
    return
  fi
  [[ $1 == *:* ]] || die "an image wants NAME:TAG, not $1"
  image_archive "$@"
  printf '%s\n' "$ARCHIVE"
}
