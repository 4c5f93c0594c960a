// Package rulefile reads rules, from YAML files and xDS resources, into the tree that package limits compiles. It reads
// the YAML of most rule files itself (plain.go) and leaves other YAML to a library (yaml.go). Both make nodes, which
// read.go turns into the tree with positions. resource.go decodes resources into the same tree.
package rulefile

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/limits"
)

// File is one rule file. Messages call it by its Name.
type File struct {
	Name string
	Text []byte
}

// Load compiles a whole configuration. The problems that it returns are warnings: they describe what is valid but
// probably not intended. The error is a *limits.Rejection with every problem in every file, and no rules are returned
// with it. No files at all are a valid configuration without domains. If ctx ends, Load ends early, with ctx's cause as
// its error.
func Load(ctx context.Context, files []File, o limits.Options) (*limits.Rules, []limits.Problem, error) {
	files = slices.Clone(files)
	slices.SortStableFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	rep := limits.NewReport(ctx, o.Paced)
	docs, bytes := make([]limits.Document, 0, len(files)), 0
	for _, f := range files {
		bytes += len(f.Text)
		if doc, ok := readFile(f, rep); ok {
			docs = append(docs, doc)
		}
	}
	return limits.Compile(bytes, docs, o, rep)
}

// readFile reads one file into a document. It first reads the file entry by entry, to save memory; if there is anything
// to report, it reads the file again as a whole.
func readFile(f File, rep *limits.Report) (limits.Document, bool) {
	syntaxProblem := func(bad *syntax) (limits.Document, bool) {
		if !rep.Stopped() {
			rep.Problem(limits.Place{File: f.Name, Pos: bad.pos}, "", "%s", bad.message)
		}
		return limits.Document{}, false
	}
	if len(f.Text) > MaxFileBytes {
		return syntaxProblem(&syntax{limits.Pos{Line: 1, Column: 1},
			fmt.Sprintf("the file has %d bytes, at most %d are read", len(f.Text), MaxFileBytes)})
	}
	text := strings.TrimPrefix(string(f.Text), "\ufeff") // without the byte order mark
	text, directives, bad := readDirectives(text)
	if bad != nil {
		return syntaxProblem(bad)
	}
	if doc, ok := streamDocument(f.Name, text, rep); ok || rep.Stopped() {
		return doc, ok
	}
	root, slow, bad := parseYAML(text, directives, rep)
	if bad != nil {
		return syntaxProblem(bad)
	}
	if slow.what != "" {
		rep.Warning(limits.Place{File: f.Name, Pos: slow.pos}, "",
			"%s here makes the whole file be read by the full YAML parser, which takes about ten times as long and "+
				"as much memory", slow.what)
	}
	return readDocument(f.Name, root, rep), true
}
