// Nothing of it is built: its custom resource definitions are what manifests are held against.
module etcd-guard/testbed/prometheus-operator

go 1.24

require github.com/prometheus-operator/prometheus-operator v0.85.0
