# A default storage class with prepared volumes: directories of this machine.
# shellcheck shell=bash source-path=SCRIPTDIR/..

# volume_manifests NUMBER: creates that many directories in RUN_DIR/volumes and prints the manifests of the volumes.
volume_manifests() {
  local number
  cat <<CLASS
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: local
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
CLASS
  for ((number = 0; number < $1; number++)); do
    # Writable for every user of a pod: hostPath does not support fsGroup.
    mkdir -p "$RUN_DIR/volumes/$number"
    chmod 777 "$RUN_DIR/volumes/$number"
    cat <<VOLUME
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: local-$number}
spec:
  storageClassName: local
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: "$RUN_DIR/volumes/$number", type: Directory}
VOLUME
  done
}
