package envoytest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// Compose is the content of a Docker compose file, as far as tests read it.
type Compose struct {
	Services map[string]Service
	Volumes  map[string]any // the named volumes
}

// Service is one service of a compose file.
type Service struct {
	Environment map[string]string
	Deploy      struct{ Replicas int }
	Volumes     []string
	StopGrace   string `yaml:"stop_grace_period"`
	Image       string
	Networks    map[string]struct {
		Address string `yaml:"ipv4_address"`
	}
}

// ReadCompose decodes a compose file. It fails the test if a folder or file that the compose file names is missing.
// oldnew are pairs of texts: in the file's text, the first of each pair is replaced by the second before decoding.
func ReadCompose(t testing.TB, file string, oldnew ...string) Compose {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c Compose
	if err := yaml.Unmarshal([]byte(strings.NewReplacer(oldnew...).Replace(string(text))), &c); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	dir := filepath.Dir(file)
	for name, service := range c.Services {
		for _, volume := range service.Volumes {
			from, _, _ := strings.Cut(volume, ":")
			if _, named := c.Volumes[from]; named {
				continue
			}
			if _, err := os.Stat(filepath.Join(dir, from)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	return c
}

// Environ returns the service's environment in the form of os.Environ: name=value.
func (s Service) Environ() []string {
	var environ []string
	for name, value := range s.Environment {
		environ = append(environ, name+"="+value)
	}
	return environ
}
