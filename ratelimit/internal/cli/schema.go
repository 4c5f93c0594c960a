package cli

import (
	_ "embed"
	"fmt"
	"io"
)

// rulesSchema is the JSON Schema of rule files, for editors: it knows keys, types, bounds, units,
// algorithms and what excludes what. Zones, prefixes and what depends on other entries are left to check.
//
//go:embed schema.json
var rulesSchema string

// schema is the command schema.
func schema(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		if isHelp(args) {
			fmt.Fprintln(stdout, "usage: ratelimit schema   print the JSON Schema of rule files")
			fmt.Fprintln(stdout, "example: ratelimit schema > rules.schema.json")
			return exitOK
		}
		fmt.Fprintf(stderr, "ratelimit: schema takes no arguments; got %q\nusage: ratelimit schema\n", args)
		return exitUsage
	}
	fmt.Fprint(stdout, rulesSchema)
	return exitOK
}
