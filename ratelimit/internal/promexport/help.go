package promexport

import (
	_ "embed"
	"strings"
)

// help is the help text of metrics whose names come from a mapping file.
const help = "A statistic of ratelimit; its README says what it counts."

// helpText has the help texts of all metrics of the default mapping: one line for each, beginning with the name.
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
