package test

import (
	"encoding/json"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"

	"gatehouse/ratelimit/internal/doctest"
	"gatehouse/shared/envoytest"
)

// recipe is one of docs/recipes.md: rules, and the actions of Envoy that stand below them.
type recipe struct {
	rules   doctest.Block
	actions []any
}

// recipes reads the page. Each of Envoy's blocks must be one that Envoy's own types accept.
func recipes(t *testing.T) (all []recipe) {
	t.Helper()
	for _, b := range doctest.Blocks(t, "docs/recipes.md") {
		if doctest.IsRules(b) {
			all = append(all, recipe{rules: b})
			continue
		}
		var block struct {
			Limits []any `yaml:"rate_limits"`
		}
		if err := yaml.Unmarshal([]byte(b.Text), &block); err != nil || len(block.Limits) == 0 || len(all) == 0 {
			t.Fatalf("%s: no rate_limits of Envoy: %v", b.Place(), err)
		}
		for _, limit := range block.Limits {
			var m routev3.RateLimit
			if text, err := json.Marshal(limit); err != nil {
				t.Errorf("%s: %v", b.Place(), err)
			} else if err := protojson.Unmarshal(text, &m); err != nil {
				t.Errorf("%s: %v", b.Place(), err)
			} else if err := m.ValidateAll(); err != nil {
				t.Errorf("%s: %v", b.Place(), err)
			}
		}
		if last := &all[len(all)-1]; last.actions == nil {
			last.actions = block.Limits
		}
	}
	return all
}

// Every recipe has rules that load without a warning and actions that Envoy knows.
func TestRecipes(t *testing.T) {
	t.Parallel()
	all := recipes(t)
	for _, r := range all {
		if _, err := loadRules(r.rules); err != nil || r.actions == nil {
			t.Errorf("%s: %v, actions %v", r.rules.Place(), err, r.actions)
		}
	}
	if len(all) != 8 {
		t.Errorf("the page has %d recipes", len(all))
	}
}

// serve runs the daemon with the rules of a recipe and an Envoy with its actions on all paths. Pairs of texts are
// replaced in the rules: windows become longer than the test, limits smaller.
func (r recipe) serve(t *testing.T, oldnew ...string) *gateway {
	t.Helper()
	for i := 0; i < len(oldnew); i += 2 {
		if !strings.Contains(r.rules.Text, oldnew[i]) {
			t.Fatalf("%s: no %q in the rules", r.rules.Place(), oldnew[i])
		}
	}
	domain, _, _ := strings.Cut(strings.TrimPrefix(r.rules.Text, "domain: "), "\n")
	p := start(t, strings.NewReplacer(oldnew...).Replace(r.rules.Text), map[string]string{"BACKEND_TYPE": "memory"})
	return startEnvoy(t, []string{p.grpc}, patient, func(t *testing.T, c envoytest.Config) {
		open, _ := limitFilters(t, c)
		open["domain"] = domain
		host := envoytest.Map(t, c.Manager(t), "route_config", "virtual_hosts", 0)
		host["routes"] = []any{map[string]any{"match": map[string]any{"prefix": "/"},
			"route": map[string]any{"cluster": "upstream", "rate_limits": r.actions}}}
	})
}

// The first four recipes do behind Envoy what they promise.
func TestRecipes_envoy(t *testing.T) {
	t.Parallel()
	envoytest.Program(t)
	all := recipes(t)
	if len(all) < 4 {
		t.Fatalf("the page has %d recipes", len(all))
	}
	here, there := caller("127.0.0.1"), caller("127.0.0.9")
	passed, over := answer{200, -1, -1}, answer{429, -1, -1}

	t.Run("logins", func(t *testing.T) {
		g := all[0].serve(t, "minute, requests_per_unit: 20", "year, requests_per_unit: 3",
			"hour, requests_per_unit: 10", "year, requests_per_unit: 2")
		g.want(t, here, passed, "/login", "X-Account: ann")
		g.want(t, there, passed, "/login", "X-Account: ann")
		g.want(t, there, over, "/login", "X-Account: ann") // the account, which counts at the address too
		g.want(t, there, passed, "/login", "X-Account: bob")
		g.want(t, there, over, "/login", "X-Account: cid") // the address
		g.want(t, here, passed, "/login")
	})
	t.Run("keys", func(t *testing.T) {
		g := all[1].serve(t, "day, requests_per_unit: 1000", "year, requests_per_unit: 2")
		for _, want := range []answer{passed, passed, over} {
			g.want(t, here, want, "/", "X-Api-Key: mine")
			g.want(t, here, passed, "/", "X-Api-Key: key-of-globex")
			g.want(t, here, passed, "/")
		}
		g.want(t, here, passed, "/", "X-Api-Key: another")
	})
	t.Run("bursts", func(t *testing.T) {
		g := all[2].serve(t, "unit: second", "unit: year")
		for range 20 {
			g.want(t, here, passed, "/", "X-User: ann")
		}
		g.want(t, here, over, "/", "X-User: ann")
		g.want(t, here, passed, "/", "X-User: bob")
	})
	t.Run("network", func(t *testing.T) {
		g := all[3].serve(t, "minute, requests_per_unit: 60", "year, requests_per_unit: 1", "10.0.0.0/8", "127.0.0.9/32")
		g.want(t, here, passed, "/", "X-User: ann")
		g.want(t, here, over, "/", "X-User: ann")
		g.want(t, there, passed, "/", "X-User: ann")
		g.want(t, there, passed, "/", "X-User: ann")
		g.want(t, here, over, "/", "X-User: ann")
	})
}
