// Package kubetest checks a daemon's Kubernetes manifests without a cluster: their schemas, their references to each
// other, the restricted profile of the Pod Security standards, and that some numbers, such as the grace period, are
// large enough. It also runs the pod of the manifests as a kubelet would.
package kubetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"gatehouse/shared/must"
)

// Object is one Kubernetes object of a manifest, decoded.
type Object map[string]any

// Manifests has all objects of a folder, with its kustomization.
type Manifests struct {
	Dir           string
	Kustomization Object
	Text          string // the kustomization's text
	Files         []string
	Objects       []Object
}

// Read decodes all manifests of a folder. oldnew are pairs of texts: in all files, the first of each pair is replaced
// by the second before decoding, so that a test can show that a check fails.
func Read(t testing.TB, dir string, oldnew ...string) *Manifests {
	t.Helper()
	m := &Manifests{Dir: dir}
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no manifests in %s: %v", dir, err)
	}
	found := len(oldnew) == 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.NewReplacer(oldnew...).Replace(string(text))
		found = found || changed != string(text)
		for d := yaml.NewDecoder(strings.NewReader(changed)); ; {
			var o Object
			if err := d.Decode(&o); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if filepath.Base(path) == "kustomization.yaml" {
				m.Kustomization, m.Text = o, changed
				continue
			}
			m.Objects = append(m.Objects, o)
		}
		if name := filepath.Base(path); name != "kustomization.yaml" {
			m.Files = append(m.Files, name)
		}
	}
	if !found {
		t.Fatalf("%q changes nothing in %s", oldnew, dir)
	}
	return m
}

// Get returns the value at a path in an object. A string in path selects from a map, an int from a list. It returns nil
// if there is no such value.
func Get(v any, path ...any) any {
	for _, step := range path {
		switch s := step.(type) {
		case string:
			switch o := v.(type) {
			case map[string]any:
				v = o[s]
			case Object:
				v = o[s]
			default:
				return nil
			}
		case int:
			list, _ := v.([]any)
			if s >= len(list) {
				return nil
			}
			v = list[s]
		}
	}
	return v
}

// Text returns the value that Get finds, as text; "" if there is none.
func Text(v any, path ...any) string {
	if v = Get(v, path...); v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// List returns the list that Get finds; nil if there is none.
func List(v any, path ...any) []any {
	list, _ := Get(v, path...).([]any)
	return list
}

// Kind returns the objects of one kind.
func (m *Manifests) Kind(kind string) (all []Object) {
	for _, o := range m.Objects {
		if Text(o, "kind") == kind {
			all = append(all, o)
		}
	}
	return all
}

// Pod returns the pod spec in the template of the only Deployment.
func (m *Manifests) Pod() any { return Get(m.deployment(), "spec", "template", "spec") }

func (m *Manifests) deployment() Object {
	if all := m.Kind("Deployment"); len(all) == 1 {
		return all[0]
	}
	return nil
}

// containers returns all containers of a pod, init containers first.
func containers(pod any) []any {
	return slices.Concat(List(pod, "initContainers"), List(pod, "containers"))
}

// Validate checks the manifests in folders with the strict schemas of one version of Kubernetes. top is the folder of
// this repository.
func Validate(t testing.TB, top, version string, dirs ...string) error {
	t.Helper()
	program := filepath.Join(top, ".run", "schemas", "bin", "kubernetes-validate")
	if _, err := os.Stat(program); err != nil {
		must.Fetched(t, top, "schemas", "no schemas of Kubernetes: run .ci/schemas")
	}
	args := []string{"--strict", "--no-warn", "-k", version}
	for _, dir := range dirs {
		for _, name := range Read(t, dir).Files {
			args = append(args, filepath.Join(dir, name))
		}
	}
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("schemas of Kubernetes %s: %w: %s", version, err, bytes.TrimSpace(out))
	}
	return nil
}
