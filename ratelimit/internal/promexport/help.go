package promexport

import (
	_ "embed"
	"strings"
)

// help is the text of a metric that a mapping file made up.
const help = "A statistic of ratelimit; its README says what it counts."

// helpText is the texts of all metrics of the default mapping: a line each, the name first.
//
//go:embed help.txt
var helpText string

var helps = func() map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(helpText) {
		name, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		m[name] = text
	}
	return m
}()

func helpOf(name string) string {
	if h, ok := helps[name]; ok {
		return h
	}
	return help
}
