#!/usr/bin/env bash
# Runs one cluster of every shape and requests deletions. CMD of `scripts/testbed node --ipv6`: story.sh PLUGIN REPORT.
# Writes lines `NAME<tab>VALUE`, which tests/shapes_node/main.rs asserts.
set -euo pipefail

PLUGIN=$1 REPORT=$2
HERE=$(realpath -- "$(dirname -- "${BASH_SOURCE[0]}")")
LOG_PREFIX=shapes-node
LIB=$HERE/../../scripts/lib
# shellcheck source=scripts/lib/log.sh
source "$LIB/log.sh"
# shellcheck source=scripts/lib/wait.sh
source "$LIB/wait.sh"
# shellcheck source=scripts/lib/certificates.sh
source "$LIB/certificates.sh"

# Each wait takes seconds on an idle machine. The timeout only ends a failed run.
READY_TIMEOUT=240
# Seconds until the response to a deletion is the expected one: longer than the guard's cache of Secrets, and than an
# election. If another response remains, it is reported, and the test fails.
RESPONSE_TIMEOUT=180

# Every shape has a namespace of its own, with this name.
SHAPES=(hidden-tls config-map-ca config-file replica-sets bare-pods custom-owner native-sidecar ipv6)
MEMBERS=(etcd-0 etcd-1 etcd-2)
PKI=$TESTBED_DIR/pki

# report NAME VALUE: writes one line of the report.
report() { printf '%s\t%s\n' "$1" "${2//[$'\t\n']/ }" >>"$REPORT"; }

# output_of COMMAND...: prints the output, with any exit status.
output_of() { timeout 60 "$@" 2>&1 || true; }

# make_certificates: one CA, one certificate for the members of all shapes, and one for clients.
make_certificates() {
  local names=(DNS:localhost IP:127.0.0.1) shape number
  for shape in "${SHAPES[@]}"; do names+=("DNS:*.etcd.$shape.svc" "DNS:*.etcd.$shape.svc.cluster.local"); done
  # The first addresses of the pods with the RuntimeClass `ipv6`: three members, each of which starts once.
  for number in {2..9}; do names+=("IP:fd00:10:245::$number"); done
  mkdir -p "$PKI"
  make_ca "$PKI/ca" 'etcd of all shapes'
  make_cert "$PKI/ca" "$PKI/server" /CN=etcd serverAuth,clientAuth "${names[@]}"
  make_cert "$PKI/ca" "$PKI/client" /CN=etcd-guard clientAuth
}

# secret NAMESPACE NAME KEY=FILE...: creates a Secret of files in PKI.
secret() {
  local pairs=("${@:3}")
  pairs=("${pairs[@]/=/=$PKI/}")
  kubectl -n "$1" create secret generic "$2" "${pairs[@]/#/--from-file=}" >/dev/null
}

credentials_of_hidden_tls() {
  secret hidden-tls etcd-tls-certificate etcd-tls.crt=server.crt etcd-tls.key=server.key
  secret hidden-tls apiserver-etcd-client-certificate apiserver-etcd-client.crt=client.crt apiserver-etcd-client.key=client.key
  secret hidden-tls ca ca.crt=ca.crt ca.key=ca.key
}
credentials_of_config_map_ca() {
  secret config-map-ca etcd-server-tls server.crt=server.crt server.key=server.key
  secret config-map-ca etcd-client-tls etcd-client.crt=client.crt etcd-client.key=client.key
  kubectl -n config-map-ca create configmap etcd-ca --from-file=ca.crt="$PKI/ca.crt" >/dev/null
}
credentials_of_config_file() {
  local member files=()
  secret config-file etcd-server server.crt=server.crt server.key=server.key ca.crt=ca.crt
  secret config-file etcd-client tls.crt=client.crt tls.key=client.key ca.crt=ca.crt
  for member in "${MEMBERS[@]}"; do
    sed "s/@MEMBER@/$member/g" "$HERE/shapes/config-file.etcd.yaml" >"$PKI/$member.yaml"
    files+=(--from-file="$PKI/$member.yaml")
  done
  kubectl -n config-file create configmap etcd-config "${files[@]}" >/dev/null
}
credentials_of_replica_sets() { secret replica-sets etcd-tls tls.crt=server.crt tls.key=server.key ca.crt=ca.crt; }
credentials_of_custom_owner() { secret custom-owner db-server-tls tls.crt=server.crt tls.key=server.key ca.crt=ca.crt; }
credentials_of_ipv6() { secret ipv6 etcd-tls tls.crt=server.crt tls.key=server.key ca.crt=ca.crt; }

# create_owner: creates the custom resource that owns the pods of custom-owner, and prints its uid.
create_owner() {
  kubectl apply -f - >/dev/null 2>&1 <<<'{"apiVersion": "example.com/v1alpha1", "kind": "EtcdCluster", "metadata": {"name": "db", "namespace": "custom-owner"}}' &&
    kubectl -n custom-owner get etcdclusters.example.com db -o 'jsonpath={.metadata.uid}'
}

# start SHAPE: creates the namespace, the credentials and the members.
start() {
  local member owner='' nameserver=''
  kubectl create namespace "$1" >/dev/null
  kubectl label namespace "$1" etcd-guard.io/guard=enabled >/dev/null
  if [[ $(type -t "credentials_of_${1//-/_}") == function ]]; then "credentials_of_${1//-/_}"; fi
  if [[ $1 == ipv6 ]]; then
    sed 's/clusterIP: None/&\n  ipFamilies: [IPv6]/' "$HERE/shapes/service.yaml" | kubectl -n "$1" apply -f - >/dev/null
    nameserver=$(kubectl -n kube-system get pods -l k8s-app=kube-dns -o 'jsonpath={.items[0].status.podIPs[1].ip}')
  else
    kubectl -n "$1" apply -f "$HERE/shapes/service.yaml" >/dev/null
  fi
  if [[ -e $HERE/shapes/$1.yaml ]]; then
    sed "s/@NAMESERVER@/$nameserver/" "$HERE/shapes/$1.yaml" | kubectl -n "$1" apply -f - >/dev/null
  fi
  if [[ -e $HERE/shapes/$1.member.yaml ]]; then
    [[ $1 != custom-owner ]] || owner=$(wait_until 'the custom resource is served' create_owner)
    for member in "${MEMBERS[@]}"; do
      printf -- '---\n'
      sed "s/@MEMBER@/$member/g; s/@OWNER@/$owner/" "$HERE/shapes/$1.member.yaml"
    done | kubectl -n "$1" apply -f - >/dev/null
  fi
}

# port_of SHAPE, scheme_of SHAPE: print parts of the members' URLs.
port_of() { if [[ $1 == config-file ]]; then printf 4379; else printf 2379; fi; }
scheme_of() { if [[ $1 == bare-pods || $1 == native-sidecar ]]; then printf http; else printf https; fi; }

# pods_by_role SHAPE: prints the leader and then the other pods, in words. Reads the metrics of etcd, without the guard. Fails
# unless three members run and one of them leads.
pods_by_role() {
  local pod address metrics leader='' others=() lines
  lines=$(kubectl -n "$1" get pods -l app=etcd -o 'jsonpath={range .items[*]}{.metadata.name} {.status.podIP}{"\n"}{end}')
  while read -r pod address; do
    [[ $address != *:* ]] || address="[$address]"
    metrics=$(curl -fsS --max-time 5 -g --insecure --cert "$PKI/client.crt" --key "$PKI/client.key" \
      "$(scheme_of "$1")://$address:$(port_of "$1")/metrics" 2>/dev/null) || return 1
    if grep -q '^etcd_server_is_leader 1$' <<<"$metrics"; then leader=$pod; else others+=("$pod"); fi
  done <<<"$lines"
  [[ -n $leader && ${#others[@]} -eq 2 ]] && printf '%s %s' "$leader" "${others[*]}"
}

# respond SHAPE ROLE PATTERN: requests the deletion of the leader (0) or of a follower (1), as a dry run, until the response
# contains the pattern. Prints the last response. An election in between changes the roles.
respond() {
  local pods response='' deadline=$((SECONDS + RESPONSE_TIMEOUT))
  while ((SECONDS < deadline)); do
    read -ra pods <<<"$(pods_by_role "$1" || true)"
    if [[ ${#pods[@]} -eq 3 ]]; then
      response=$(output_of kubectl -n "$1" delete pod "${pods[$2]}" --dry-run=server)
      # shellcheck disable=SC2053 # a pattern is intended
      [[ $response != *$3* ]] || break
    fi
    sleep 1
  done
  printf '%s' "$response"
}

# owner_of SHAPE: prints an owner that is no StatefulSet, or nothing.
owner_of() {
  case $1 in
  replica-sets) printf 'replicaset/etcd-0' ;;
  custom-owner) printf 'etcdclusters.example.com/db' ;;
  esac
}

# answer_of SHAPE POD: prints the events of the guard that answer requests to move leadership from POD.
answer_of() {
  local events='' deadline=$((SECONDS + 15))
  while ((SECONDS < deadline)); do
    events=$(kubectl -n "$1" get events.events.k8s.io -o jsonpath='{range .items[*]}{.note}{"\n"}{end}' | grep '^move-leader ' || true)
    [[ $events != *"leadership moved from $2 "* ]] || break
    sleep 1
  done
  printf '%s' "$events"
}

# move_leadership SHAPE: runs the command of the leader's denial until it succeeds. Prints its output.
move_leadership() {
  local denial leader command output='' deadline=$((SECONDS + RESPONSE_TIMEOUT))
  while ((SECONDS < deadline)); do
    denial=$(respond "$1" 0 'Move leadership, then retry: kubectl ')
    [[ $denial == *'Without the plugin: kubectl '* ]] || break
    leader=${denial##*'move-leader -n '"$1"' '}
    leader=${leader%%$'\n'*}
    command=${denial##*Without the plugin: }
    output=$(output_of bash -c "${command%%$'\n'*}")
    [[ $output != *annotated* ]] || output=$(answer_of "$1" "$leader")
    [[ $output != *'leadership moved from'* ]] || break
    sleep 1
  done
  printf '%s' "$output"
}

# access SHAPE: prints the Secrets and ConfigMaps of the namespace that the guard may access, as the API server lists them.
access() {
  kubectl auth can-i --list --as=system:serviceaccount:etcd-guard:etcd-guard -n "$1" | awk '/^(secrets|configmaps) /'
}

# prove SHAPE: inspects a member, applies the printed Role, and requests deletions before and after.
prove() {
  local pods role owner
  pods=$(wait_until "one member of $1 leads" pods_by_role "$1") || return 1
  report "$1-inspect" "$(output_of "$PLUGIN" inspect "${pods%% *}" -n "$1" -o json)"
  role=$("$PLUGIN" inspect "${pods%% *}" -n "$1" --role)
  report "$1-access-before" "$(access "$1")"
  if [[ $role == *resourceNames* ]]; then
    # The members cannot be reached.
    report "$1-before" "$(respond "$1" 0 'not allowed to read*kubectl etcd-guard inspect')"
    kubectl apply -f - <<<"$role" >/dev/null
  fi
  report "$1-access" "$(access "$1")"
  if [[ $1 == bare-pods ]]; then
    report "$1-before" "$(respond "$1" 1 PermanentLoss)"
    kubectl annotate namespace "$1" etcd-guard.io/ephemeral-data=allow >/dev/null
  fi
  report "$1-leader" "$(respond "$1" 0 'LeaderProtected: *3 of 3 voters')"
  report "$1-follower" "$(respond "$1" 1 'server dry run')"
  owner=$(owner_of "$1")
  [[ -z $owner ]] || report "$1-owner" "$(output_of kubectl -n "$1" delete "$owner" --dry-run=server)"
  report "$1-move" "$(move_leadership "$1")"
  log "$1: done after $SECONDS s"
}

make_certificates
kubectl apply -k "$HERE/guard" >/dev/null
for shape in "${SHAPES[@]}"; do start "$shape"; done
kubectl -n etcd-guard rollout status deployment/etcd-guard --timeout="${READY_TIMEOUT}s" >/dev/null || fail 'the guard is not ready'
log "the guard is ready after $SECONDS s"
proofs=()
for shape in "${SHAPES[@]}"; do
  prove "$shape" &
  proofs+=("$!")
done
for proof in "${proofs[@]}"; do wait "$proof" || fail "a shape failed: $(kubectl get pods -A -o wide)"; done
report end reached
