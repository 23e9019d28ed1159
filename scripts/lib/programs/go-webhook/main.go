// A webhook server in the style of common tutorials and of slackhq/simple-kubernetes-webhook, written for
// scripts/compare: net/http, the types of k8s.io/api, logrus for one log line per verdict, and jsondiff for the patch.
// /validate denies the deletion of pods that run etcd. /mutate adds a sidecar, its volume, and a variable and a mount
// to each container of pods that request it. It reads nothing but the review.
//
// go-webhook ADDRESS CERTIFICATE KEY
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/wI2L/jsondiff"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// Annotation and value by which a pod requests the sidecar.
	annotation = "etcd-guard.io/inject"
	template   = "agent"

	// Reviews of the API server are smaller than 8 MiB.
	maxBody     = 8 << 20
	readTimeout = 10 * time.Second
)

func main() {
	if len(os.Args) != 4 {
		logrus.Fatal("usage: go-webhook ADDRESS CERTIFICATE KEY")
	}
	logrus.SetFormatter(&logrus.JSONFormatter{})
	handler := http.NewServeMux()
	handler.HandleFunc("/validate", serve(validate))
	handler.HandleFunc("/mutate", serve(mutate))
	server := &http.Server{Addr: os.Args[1], Handler: handler, ReadHeaderTimeout: readTimeout}
	logrus.WithField("address", os.Args[1]).Info("serving")
	logrus.Fatal(server.ListenAndServeTLS(os.Args[2], os.Args[3]))
}

type handler func(*admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error)

// serve decodes a review, calls the handler and writes its response.
func serve(handle handler) http.HandlerFunc {
	return func(writer http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(writer, request.Body, maxBody))
		if err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &review); err != nil || review.Request == nil {
			http.Error(writer, fmt.Sprintf("not an AdmissionReview: %v", err), http.StatusBadRequest)
			return
		}
		response, err := handle(review.Request)
		if err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		response.UID = review.Request.UID
		logrus.WithFields(logrus.Fields{
			"operation": review.Request.Operation,
			"namespace": review.Request.Namespace,
			"name":      review.Request.Name,
			"allowed":   response.Allowed,
			"patch":     len(response.Patch),
		}).Info("verdict")
		writer.Header().Set("Content-Type", "application/json")
		err = json.NewEncoder(writer).Encode(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
		if err != nil {
			logrus.WithError(err).Warn("the response was not written")
		}
	}
}

// validate denies the deletion of a pod that runs etcd.
func validate(request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(request.OldObject.Raw, &pod); err != nil {
		return nil, fmt.Errorf("not a pod: %w", err)
	}
	for _, container := range pod.Spec.Containers {
		if runsEtcd(container) {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{
				Code:    http.StatusForbidden,
				Message: fmt.Sprintf("container %s runs etcd", container.Name),
			}}, nil
		}
	}
	return &admissionv1.AdmissionResponse{Allowed: true}, nil
}

func runsEtcd(container corev1.Container) bool {
	if strings.HasPrefix(path.Base(container.Image), "etcd") {
		return true
	}
	for _, words := range [][]string{container.Command, container.Args} {
		for _, word := range words {
			if path.Base(word) == "etcd" {
				return true
			}
		}
	}
	return false
}

// mutate adds the sidecar to a pod that requests it.
func mutate(request *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, error) {
	var pod corev1.Pod
	if err := json.Unmarshal(request.Object.Raw, &pod); err != nil {
		return nil, fmt.Errorf("not a pod: %w", err)
	}
	if pod.Annotations[annotation] != template {
		return &admissionv1.AdmissionResponse{Allowed: true}, nil
	}
	changed := pod.DeepCopy()
	inject(&changed.Spec)
	patch, err := jsondiff.Compare(&pod, changed)
	if err != nil {
		return nil, fmt.Errorf("no patch: %w", err)
	}
	encoded, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("no patch: %w", err)
	}
	patchType := admissionv1.PatchTypeJSONPatch
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: encoded, PatchType: &patchType}, nil
}

func inject(spec *corev1.PodSpec) {
	for number := range spec.Containers {
		container := &spec.Containers[number]
		container.Env = append(container.Env, corev1.EnvVar{Name: "AGENT_SOCKET", Value: "/agent/socket"})
		container.VolumeMounts = append(container.VolumeMounts,
			corev1.VolumeMount{Name: "agent-data", MountPath: "/agent"})
	}
	spec.Containers = append(spec.Containers, corev1.Container{
		Name:         "agent",
		Image:        "agent:1",
		VolumeMounts: []corev1.VolumeMount{{Name: "agent-data", MountPath: "/data"}},
	})
	spec.Volumes = append(spec.Volumes, corev1.Volume{
		Name:         "agent-data",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
	})
}
