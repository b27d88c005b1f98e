// Command noop is an admission webhook that adds one scheduling gate to every pod and does
// nothing else: the least that any webhook which holds pods must cost. Fairgate is measured
// against it, so it must stay as cheap as net/http and encoding/json allow without tricks.
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net/http"
	"time"
)

const maxBody = 8 << 20

type review struct {
	Request struct {
		UID    string `json:"uid"`
		Object struct {
			Spec struct {
				SchedulingGates []gate `json:"schedulingGates"`
			} `json:"spec"`
		} `json:"object"`
	} `json:"request"`
}

type gate struct {
	Name string `json:"name"`
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

type response struct {
	UID       string `json:"uid"`
	Allowed   bool   `json:"allowed"`
	PatchType string `json:"patchType"`
	Patch     []byte `json:"patch"` // encoding/json writes bytes as base64
}

type answer struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Response   response `json:"response"`
}

// hold answers every review with a patch that adds the gate `ours`.
func hold(ours gate) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var asked review
		if err := json.Unmarshal(body, &asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		add := operation{"add", "/spec/schedulingGates", []gate{ours}}
		if len(asked.Request.Object.Spec.SchedulingGates) > 0 {
			add = operation{"add", "/spec/schedulingGates/-", ours}
		}
		patch, err := json.Marshal([]operation{add})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		said := response{asked.Request.UID, true, "JSONPatch", patch}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer{"admission.k8s.io/v1", "AdmissionReview", said})
	}
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	cert := flag.String("cert", "", "serving certificate, PEM")
	key := flag.String("key", "", "its private key, PEM")
	name := flag.String("gate", "", "scheduling gate to add")
	flag.Parse()
	server := &http.Server{
		Addr:              *listen,
		Handler:           hold(gate{*name}),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       130 * time.Second,
	}
	log.Fatal(server.ListenAndServeTLS(*cert, *key))
}
