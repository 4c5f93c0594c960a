// Package alerttest tests the alert rules of a daemon with promtool, Prometheus' own tool: for each alert a case in
// which it fires, and one in which all is well and it does not.
//
// It is for tests only. It does not check whether the metrics exist that the rules name: a test of the daemon does,
// which has a page of metrics to compare with.
package alerttest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// Alert is one alert rule.
type Alert struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// Read returns the alert rules in dir/alerts.yml.
func Read(t testing.TB, dir string) (all []Alert) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []Alert }
	}
	read(t, filepath.Join(dir, "alerts.yml"), &file)
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// Fire runs dir/alerts_test.yml with promtool. The file must have, for each alert, a case in which it fires and one in
// which it does not. Without promtool the test is skipped; if REQUIRE_SERVERS is 1, it fails.
func Fire(t testing.TB, dir string) {
	t.Helper()
	tool := promtool(t)
	if tool == "" {
		t.Skip("promtool is missing")
	}
	var file struct {
		Tests []struct {
			AlertRuleTest []struct {
				Alertname string `yaml:"alertname"`
				ExpAlerts []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	read(t, filepath.Join(dir, "alerts_test.yml"), &file)
	firing, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.AlertRuleTest {
			if len(c.ExpAlerts) > 0 {
				firing[c.Alertname] = true
			} else {
				silent[c.Alertname] = true
			}
		}
	}
	for _, a := range Read(t, dir) {
		if !firing[a.Alert] || !silent[a.Alert] {
			t.Errorf("alerts_test.yml does not show %s firing, or not silent", a.Alert)
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" || a.Labels["severity"] == "" {
			t.Errorf("%s lacks a summary, a description or a severity", a.Alert)
		}
	}
	cmd := exec.Command(tool, "test", "rules", "alerts_test.yml")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func read(t testing.TB, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// lintFound is promtool's exit status when it has complaints about a page that it could read.
const lintFound = 3

// Lint checks a page of metrics with promtool's rules for names, types and help texts. It ignores complaints that match
// one of the regular expressions in accepted, which are about names that must not change. Without promtool, Lint does
// nothing; if REQUIRE_SERVERS is 1, the test fails.
func Lint(t testing.TB, page string, accepted ...string) {
	t.Helper()
	tool := promtool(t)
	if tool == "" {
		return
	}
	cmd := exec.Command(tool, "check", "metrics")
	cmd.Stdin = strings.NewReader(page)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil &&
		!(ok && exit.ExitCode() == lintFound && len(accepted) > 0) {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
		return
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		if !slices.ContainsFunc(accepted, func(re string) bool { return regexp.MustCompile(re).MatchString(line) }) {
			t.Errorf("promtool check metrics: %s", line)
		}
	}
}

// promtool returns the path of promtool; "" if it is missing and not required.
func promtool(t testing.TB) string {
	t.Helper()
	tool, err := exec.LookPath("promtool")
	if err != nil && os.Getenv("REQUIRE_SERVERS") == "1" {
		t.Fatal("promtool is missing: apt-get install prometheus")
	}
	return tool
}
