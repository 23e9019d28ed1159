# Certificate authorities, certificates and kubeconfigs, made with openssl. All keys are ECDSA P-256.
# shellcheck shell=bash source-path=SCRIPTDIR

# Validity in days: enough for any run of a testbed. Other scripts set their own.
CERT_DAYS=30

# run_openssl WORD...: runs openssl and shows its output only if it fails.
run_openssl() {
  local text
  text=$(openssl "$@" 2>&1) || fail "openssl $1 failed: $text"
}

# make_ca BASE NAME: writes BASE.key and BASE.crt. A CA is valid ten times as long as the certificates that it signs.
make_ca() {
  run_openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -days "$((CERT_DAYS * 10))" -subj "/CN=$2" \
    -keyout "$1.key" -out "$1.crt" -addext 'basicConstraints=critical,CA:TRUE' -addext 'keyUsage=critical,keyCertSign,cRLSign'
}

# make_cert CA BASE SUBJECT USAGE [SAN...]: writes BASE.key and BASE.crt, signed by CA.crt. USAGE is serverAuth,
# clientAuth or both with a comma; a SAN has the form of openssl (DNS:name, IP:address).
make_cert() {
  local ca=$1 base=$2 subject=$3 usage=$4 extensions
  shift 4
  extensions="basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=$usage"
  [[ $# -eq 0 ]] || extensions+="
subjectAltName=$(IFS=,; printf '%s' "$*")"
  run_openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -sha256 -subj "$subject" -keyout "$base.key" -out "$base.csr"
  # A random serial number: -CAcreateserial would store it in a file that parallel callers share.
  run_openssl x509 -req -in "$base.csr" -CA "$ca.crt" -CAkey "$ca.key" -set_serial "0x$(openssl rand -hex 8)" -sha256 -days "$CERT_DAYS" \
    -extfile <(printf '%s\n' "$extensions") -out "$base.crt"
  rm -f -- "$base.csr"
}

# make_kubeconfig FILE SERVER CA.crt BASE: writes a kubeconfig that contains its certificates, so that it can be copied.
make_kubeconfig() {
  cat >"$1" <<KUBECONFIG
apiVersion: v1
kind: Config
clusters:
- name: testbed
  cluster:
    server: $2
    certificate-authority-data: $(base64 -w0 <"$3")
users:
- name: user
  user:
    client-certificate-data: $(base64 -w0 <"$4.crt")
    client-key-data: $(base64 -w0 <"$4.key")
contexts:
- name: testbed
  context:
    cluster: testbed
    user: user
current-context: testbed
KUBECONFIG
  chmod 600 "$1"
}
