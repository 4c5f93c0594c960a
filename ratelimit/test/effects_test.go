package test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/shared/settings"
	"gatehouse/shared/settings/settingstest"
)

// This file holds that every variable has a test that shows its effect: what the daemon, a real
// process, does otherwise when the variable is set. TestConfig_everyVariable only shows that it is read.
//
// A variable's test is next to those of its kind, in effects_*_test.go or any other file of this package:
//
//	var _ = effect("DRAIN_DELAY", func(t *testing.T) { ... })
//
// and runs as TestEffects/DRAIN_DELAY, in parallel with the others.

// effects are the tests by their variables, and shown the variables that one of them has.
var effects, shown = map[string]func(*testing.T){}, map[string]bool{}

// effect registers the test of one variable, or of several (with a space between) that are shown together.
func effect(names string, test func(*testing.T)) bool {
	effects[names] = test
	for name := range strings.FieldsSeq(names) {
		if shown[name] {
			panic(name + " has two effect tests")
		}
		shown[name] = true
	}
	return true
}

// nameless are variables that are no field of Config.
var nameless = strings.Fields(`TAGGED_STATSD_MOGRIFIER_N_PATTERN TAGGED_STATSD_MOGRIFIER_N_NAME TAGGED_STATSD_MOGRIFIER_N_TAGS
	OTEL_EXPORTER_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_COMPRESSION OTEL_RESOURCE_ATTRIBUTES`)

func TestEffects(t *testing.T) {
	for names, test := range effects {
		t.Run(names, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// TestEffects_everyVariable: each variable that docs/settings.md lists (TestDocs_settings compares that list with the
// struct) has an effect test, and each effect test a variable. Of a struct that a package takes whole one variable is
// enough: TestConfig_everyVariable has set each of them and read it there.
func TestEffects_everyVariable(t *testing.T) {
	fields, err := settings.Fields(new(config.Config))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range fields {
		names[f.Name] = true
	}
	for _, name := range nameless {
		names[name] = true
	}
	whole := map[string]bool{}
	for _, room := range settingstest.Rooms[config.Config](t) {
		for _, name := range room {
			whole[name] = slices.ContainsFunc(room, func(other string) bool { return shown[other] })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !shown[name] && !whole[name] {
			t.Errorf("%s has no test that shows its effect", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		if !names[name] {
			t.Errorf("%s has an effect test and is no variable", name)
		}
	}
}

// with sets more variables in env: name, value, name, ..., the names without a prefix that they share.
func with(env map[string]string, prefix string, more ...string) map[string]string {
	for i := 0; i < len(more); i += 2 {
		env[prefix+more[i]] = more[i+1]
	}
	return env
}
