// Not built: tests validate manifests against its custom resource definitions.
module etcd-guard/testbed/prometheus-operator

go 1.24

require github.com/prometheus-operator/prometheus-operator v0.85.0
