// Nothing of it is built: its custom resource definitions are what manifests are held against.
module etcd-guard/testbed/cert-manager

go 1.24

require github.com/cert-manager/cert-manager v1.21.2
