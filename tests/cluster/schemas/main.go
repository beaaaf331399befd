// Package main decodes objects strictly into the types of one Kubernetes version: a field that
// the version does not have is an error. Reads a JSON array of objects from standard input.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	scheduling "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
)

func main() {
	scheme := runtime.NewScheme()
	groups := []func(*runtime.Scheme) error{
		apps.AddToScheme, core.AddToScheme, networking.AddToScheme, rbac.AddToScheme,
		scheduling.AddToScheme,
	}
	for _, add := range groups {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	strict := serializer.NewSerializerWithOptions(
		serializer.DefaultMetaFactory, scheme, scheme, serializer.SerializerOptions{Strict: true})
	var objects []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		panic(err)
	}
	failed := false
	for _, one := range objects {
		object, kind, err := strict.Decode(one, nil, nil)
		if err != nil {
			failed = true
			fmt.Fprintln(os.Stderr, kind, err)
			continue
		}
		fmt.Printf("%T\n", object)
	}
	if failed {
		os.Exit(1)
	}
}
