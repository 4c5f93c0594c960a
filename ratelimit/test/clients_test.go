package test

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"gatehouse/shared/must"
)

const shouldRateLimit = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// Clients of other languages, each with its own HTTP/2, get what grpc-go's gets: decisions, long messages, refusals,
// other methods and unknown ones.
func TestClients(t *testing.T) {
	t.Parallel()
	dir, err := filepath.Abs("../.run/clients")
	must.Succeed(t, err)
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		must.Fetched(t, "..", "clients", "the clients are not installed: run .ci/clients")
	}
	p := start(t, "[{key: k, @5/h}, {key: long, @100/h}]", nil)
	for name, program := range map[string][]string{
		"python": {filepath.Join(dir, "python/bin/python"), "test/clients/client.py"},
		"node":   {"node", "test/clients/client.mjs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := func(method string, requests ...proto.Message) []string {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var input strings.Builder
				for _, r := range requests {
					b, err := proto.Marshal(r)
					must.Succeed(t, err)
					fmt.Fprintln(&input, hex.EncodeToString(b))
				}
				cmd := exec.CommandContext(ctx, program[0], program[1], p.grpc, method, "20")
				cmd.Stdin = strings.NewReader(input.String())
				cmd.Env = append(os.Environ(), "CLIENTS="+dir)
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			}
			codes := map[string]int{}
			var many []proto.Message
			for range 40 {
				many = append(many, request("k", name))
			}
			for _, line := range call(shouldRateLimit, many...) {
				codes[decision(t, line)]++
			}
			if codes["OK"] != 5 || codes["OVER_LIMIT"] != 35 {
				t.Errorf("40 calls of 5 allowed: %v", codes)
			}
			for _, n := range []int{16 << 10, 64 << 10} { // more than a frame, as much as a value may have
				if got := decision(t, call(shouldRateLimit, request("long", strings.Repeat("x", n)))[0]); got != "OK" {
					t.Errorf("a value of %d bytes: %s", n, got)
				}
			}
			if got := call(shouldRateLimit, request("long", strings.Repeat("x", 300<<10)))[0]; !strings.HasPrefix(got,
				"3 ") {
				t.Errorf("a value of 300 KiB: %s, want INVALID_ARGUMENT", got)
			}
			if got := call(shouldRateLimit, &pb.RateLimitRequest{})[0]; got != "3 rate limit domain must not be empty" {
				t.Errorf("no domain: %s", got)
			}
			if got := call("/grpc.health.v1.Health/Check", &healthpb.HealthCheckRequest{})[0]; got != "0 0801" {
				t.Errorf("health: %s", got)
			}
			if got := call("/no.Service/Method",
				&healthpb.HealthCheckRequest{})[0]; got != "12 unknown service no.Service" {
				t.Errorf("an unknown service: %s", got)
			}
		})
	}
}

// decision is the overall code of a line of output, or the line where it is no answer.
func decision(t testing.TB, line string) string {
	t.Helper()
	text, ok := strings.CutPrefix(line, "0 ")
	if !ok {
		return line
	}
	b, err := hex.DecodeString(text)
	must.Succeed(t, err)
	var answer pb.RateLimitResponse
	must.Succeed(t, proto.Unmarshal(b, &answer))
	return answer.OverallCode.String()
}
