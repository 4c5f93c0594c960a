//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"gatehouse/shared/localserver"
)

//go:embed envoy.yaml
var envoyConfig string

// startEnvoys starts an Envoy in front of each target that is measured through one, if Envoy is installed.
func (s *suite) startEnvoys(ctx context.Context) error {
	program := localserver.Envoy(".")
	for _, g := range groups() {
		for _, l := range s.testbed.withEditions(g, 0) {
			if l.via != viaEnvoy || !s.wants("ratelimit", l) || s.target(l) == nil {
				continue
			}
			if program == "" {
				s.refused = append(s.refused,
					"targets behind Envoy: there is none (.ci/envoy fetches one, ENVOY_BIN names one)")
				return nil
			}
			if err := s.testbed.envoy(ctx, program, s.target(l)); err != nil {
				return err
			}
		}
	}
	return nil
}

// envoy starts an Envoy in front of a target and waits until a request has passed.
func (l *testbed) envoy(ctx context.Context, program string, front *target) error {
	ports, err := localserver.FreePorts(2)
	if err != nil {
		return err
	}
	_, service, _ := net.SplitHostPort(front.addr) // made of a free port
	t := &target{name: "envoy of " + front.name, addr: "127.0.0.1:" + ports[0]}
	config := filepath.Join(l.dir, "envoy-"+ports[0]+".yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, envoyConfig, ports[0], ports[1], service), 0o644); err != nil {
		return err
	}
	if err := l.begin(t, exec.Command(program, "-c", config, "--concurrency", "1", "--disable-hot-restart",
		"--log-level", "warning")); err != nil {
		return err
	}
	front.envoy = t
	return l.awaitHTTP(ctx, t, "/", "")
}

// throughEnvoy returns requests for which Envoy calls with the values of a scenario of one entry.
func throughEnvoy(s scenario) httpTraffic {
	next := numbers(s, 1)
	return httpTraffic{
		next: func(b []byte, _ int) ([]byte, bool) {
			return fmt.Appendf(b, "GET / HTTP/1.1\r\nHost: bench.example\r\nX-Key: key-%07d\r\n\r\n", next()), true
		},
		judge: answered(200),
	}
}
