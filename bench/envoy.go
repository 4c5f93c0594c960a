//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"gatehouse/shared/subprocess"
)

// envoyConfig is an Envoy with one worker that asks a rate limit service about each request and passes it to a
// listener of its own, which answers at once: port of the first listener, of the second, of the service.
const envoyConfig = `
static_resources:
  listeners:
    - name: public
      address: {socket_address: {address: 127.0.0.1, port_value: %[1]s}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: public
                http_filters:
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: ` + domain + `
                      timeout: 2s
                      failure_mode_deny: true
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {envoy_grpc: {cluster_name: ratelimit}}
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {prefix: /}
                          route:
                            cluster: upstream
                            rate_limits:
                              - actions:
                                  - request_headers: {header_name: x-key, descriptor_key: api_key}
    - name: upstream
      address: {socket_address: {address: 127.0.0.1, port_value: %[2]s}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: upstream
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                        - match: {prefix: /}
                          direct_response: {status: 200, body: {inline_string: ok}}
  clusters:
    - name: upstream
      connect_timeout: 1s
      load_assignment:
        cluster_name: upstream
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[2]s}}}}]}]
    - name: ratelimit
      connect_timeout: 1s
      load_assignment:
        cluster_name: ratelimit
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[3]s}}}}]}]
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
`

// envoyProgram is ENVOY_BIN, an envoy on PATH, or the one that .ci/envoy fetched; "" without one.
func envoyProgram() string {
	if program := os.Getenv("ENVOY_BIN"); program != "" {
		return program
	}
	if program, err := exec.LookPath("envoy"); err == nil {
		return program
	}
	found, _ := filepath.Glob(".run/envoy/lib/python*/site-packages/envoy/_bin/envoy") // the pattern is well-formed
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// startEnvoys starts an Envoy in front of each target that is measured through one, unless there is no Envoy here.
func (s *suite) startEnvoys(ctx context.Context) error {
	program := envoyProgram()
	for _, g := range groups() {
		for _, l := range s.withEditions(g, 0) {
			if l.via != viaEnvoy || !s.wantsLine(l) {
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
	ports, err := freePorts(2)
	if err != nil {
		return err
	}
	_, service, err := net.SplitHostPort(front.addr)
	if err != nil {
		return err
	}
	t := &target{name: "envoy of " + front.name, addr: "127.0.0.1:" + ports[0]}
	home := filepath.Join(l.dir, t.name)
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	config := filepath.Join(home, "envoy.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, envoyConfig, ports[0], ports[1], service), 0o644); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(home, "log"))
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(program, "-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, []string{"PATH=" + os.Getenv("PATH")}
	if t.process, err = subprocess.Start(cmd); err != nil {
		return err
	}
	l.started = append(l.started, t)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	err = l.retry(ctx, t, time.Minute, func(ctx context.Context) error {
		return get(ctx, &client, "http://"+t.addr+"/", "")
	})
	front.envoy = t
	return err
}

// throughEnvoy is requests for which Envoy asks about the values of a scenario of one entry.
func throughEnvoy(s scenario) httpTraffic {
	next := numbers(s, 1)
	return httpTraffic{
		next: func(b []byte, _ int) ([]byte, bool) {
			return fmt.Appendf(b, "GET / HTTP/1.1\r\nHost: bench.example\r\nX-Key: key-%07d\r\n\r\n", next()), true
		},
		judge: func(_, status int, _ []byte) bool { return status == 200 },
	}
}
