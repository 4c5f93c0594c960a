package rulefile

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/token"

	"gatehouse/ratelimit/internal/limits"
)

// guard checks a file's tokens before the YAML library parses them. The library's parser recurses once for each level
// of nesting and once for each key of a block map, without a bound, and Go cannot recover from a stack overflow. Its
// time grows with the square of the keys in one map, and of the errors on one line. No real rule file comes near these
// bounds.
const (
	// maxDepth bounds the nesting of a file. Requests have at most 64 entries by default, which need 130 levels of
	// nesting in a file.
	maxDepth = 1000
	// maxKeys bounds the keys of one block map. Only metadata is a map with any keys; the others have few.
	maxKeys = 1000
	// maxMerges bounds the merge keys (<<) of a file; each costs some 5 KB.
	maxMerges = 10000
	// maxMarks bounds the colons on one line, outside of brackets and braces, and the directives of a file.
	maxMarks = 100
)

// guard refuses a text on which the parser would recurse too deep or take too long.
func guard(tokens token.Tokens) *syntax {
	var g complexityCheck
	for _, t := range tokens {
		if t.Position == nil {
			continue
		}
		if message := g.visit(t); message == secondDocument {
			return &syntax{positionOf(g.second), message}
		} else if message != "" {
			return &syntax{positionOf(t), message}
		}
	}
	return nil
}

type complexityCheck struct {
	flow       int // number of brackets and braces that are open
	line       int
	marks      int // number of dashes, question marks, tags and anchors on this line
	colons     int // number of colons on this line
	directives int
	merges     int
	content    bool         // set once a token with content has been seen
	second     *token.Token // the marker that begins a second document, which may be empty
	maps       []keyRun     // the block maps that are open
}

// keyRun is a block map whose keys begin in the given column.
type keyRun struct{ column, keys int }

func (g *complexityCheck) visit(t *token.Token) string {
	if t.Position.Line != g.line {
		g.line, g.marks, g.colons = t.Position.Line, 0, 0
	}
	switch t.Type {
	case token.DocumentHeaderType:
		if g.second != nil {
			return secondDocument
		}
		if g.content {
			g.second = t
		}
		g.content = true
		return ""
	case token.CommentType, token.DocumentEndType:
		return ""
	case token.DirectiveType:
		return over(&g.directives, maxMarks, "directives")
	case token.MergeKeyType:
		if message := over(&g.merges, maxMerges, "merge keys (<<)"); message != "" {
			return message
		}
	case token.SequenceStartType, token.MappingStartType:
		g.flow++
	case token.SequenceEndType, token.MappingEndType:
		if g.flow--; g.flow < 0 {
			return fmt.Sprintf("not YAML: %s closes nothing", t.Value)
		}
	case token.SequenceEntryType, token.MappingKeyType, token.TagType, token.AnchorType:
		g.marks++
		if t.Type == token.SequenceEntryType {
			g.end(t.Position.Column)
		}
	case token.AliasType:
		if !named(t) {
			return starNeedsQuotes
		}
	case token.CollectEntryType:
		if p := t.Prev; p != nil && (p.Type == token.CollectEntryType || p.Type == token.SequenceStartType ||
			p.Type == token.MappingStartType) {
			return "not YAML: nothing stands before the comma"
		}
	case token.MappingValueType:
		if g.flow == 0 {
			if message := over(&g.colons, maxMarks, "colons on one line"); message != "" {
				return message
			}
			if g.key(t) > maxKeys {
				return fmt.Sprintf("a map with more than %d keys", maxKeys)
			}
		}
	}
	if g.flow > maxDepth || g.marks > maxDepth || len(g.maps) > maxDepth {
		return fmt.Sprintf("nested deeper than %d levels", maxDepth)
	}
	if g.content = true; g.second != nil {
		return secondDocument
	}
	return ""
}

// over increments *n, which counts the constructs that of names, and returns an error text if the count then exceeds
// the bound in most.
func over(n *int, most int, of string) string {
	if *n++; *n > most {
		return fmt.Sprintf("more than %d %s", most, of)
	}
	return ""
}

// named reports whether a name follows directly after the star of an alias.
func named(alias *token.Token) bool {
	n := alias.Next
	return n != nil && n.Position != nil && n.Position.Offset == alias.Position.Offset+1 &&
		!strings.ContainsAny(n.Value[:min(len(n.Value), 1)], "*,]}")
}

// end closes the block maps that lie to the right of a column.
func (g *complexityCheck) end(column int) {
	for len(g.maps) > 0 && g.maps[len(g.maps)-1].column > column {
		g.maps = g.maps[:len(g.maps)-1]
	}
}

// key counts the key before a colon in its block map, and returns how many keys the map has so far.
func (g *complexityCheck) key(colon *token.Token) int {
	column := colon.Position.Column
	if k := colon.Prev; k != nil && k.Position != nil && k.Position.Line == colon.Position.Line {
		column = k.Position.Column
	}
	g.end(column)
	if n := len(g.maps); n > 0 && g.maps[n-1].column == column {
		g.maps[n-1].keys++
		return g.maps[n-1].keys
	}
	g.maps = append(g.maps, keyRun{column, 1})
	return 1
}

// directives are the YAML directives that precede the first --- of a file: %YAML and %TAG.
type directives struct {
	tags map[string]string // %TAG handle -> prefix
}

// readDirectives reads the directives of a file. The text it returns has the directives turned into comments, so that
// lines keep their numbers. Directives other than %YAML and %TAG, which YAML reserves, are ignored, and so is a version
// of YAML that differs only in its second number.
func readDirectives(text string) (string, directives, *syntax) {
	var d directives
	var found []int // offsets of the directives in text
	version := false
	line := int32(0)
	for begin := 0; ; {
		line++
		content, _, more := strings.Cut(text[begin:], "\n")
		fields := strings.Fields(content)
		switch {
		case len(fields) > 0 && content[0] == '%':
			if len(found) == maxMarks {
				return "", d, &syntax{limits.Pos{Line: line, Column: 1},
					fmt.Sprintf("more than %d directives", maxMarks)}
			}
			found = append(found, begin)
			if bad := d.add(fields, &version); bad != "" {
				return "", d, &syntax{limits.Pos{Line: line, Column: 1}, bad}
			}
		case len(fields) > 0 && fields[0][0] != '#':
			if len(found) == 0 {
				return text, d, nil
			}
			if fields[0] != "---" || content[0] != '-' {
				return "", d, &syntax{limits.Pos{Line: line, Column: 1},
					"a line --- must stand between directives and the document"}
			}
			return commented(text, found), d, nil
		}
		if !more {
			if len(found) > 0 {
				return "", d, &syntax{limits.Pos{Line: line, Column: 1}, "a line --- must follow the directives"}
			}
			return text, d, nil
		}
		begin += len(content) + 1
	}
}

// add reads one directive, which is split into fields. bad is the error text; empty if there is none.
func (d *directives) add(fields []string, versionSeen *bool) (bad string) {
	for i, f := range fields {
		if f[0] == '#' {
			fields = fields[:i]
			break
		}
	}
	switch fields[0] {
	case "%YAML":
		if *versionSeen {
			return "%YAML stands twice"
		}
		*versionSeen = true
		if len(fields) != 2 || !strings.HasPrefix(fields[1], "1.") {
			return fmt.Sprintf("%s: want %%YAML 1.1 or %%YAML 1.2", limits.OneLine(strings.Join(fields, " ")))
		}
	case "%TAG":
		if len(fields) != 3 || fields[1][0] != '!' || fields[1][len(fields[1])-1] != '!' {
			return fmt.Sprintf("%s: want %%TAG !handle! prefix", limits.OneLine(strings.Join(fields, " ")))
		}
		if _, twice := d.tags[fields[1]]; twice {
			return fmt.Sprintf("%%TAG %s stands twice", limits.OneLine(fields[1]))
		}
		if d.tags == nil {
			d.tags = map[string]string{}
		}
		d.tags[fields[1]] = fields[2]
	}
	return ""
}

// commented returns the text with the % at each offset replaced by #, which makes directives comments.
func commented(text string, offsets []int) string {
	b := []byte(text)
	for _, at := range offsets {
		b[at] = '#'
	}
	return string(b)
}

// coreTags is the prefix of YAML's own tags, which are written as !!str and so on.
const coreTags = "tag:yaml.org,2002:"

// tag returns a tag in the form !!name if the tag is one of YAML's own, whatever handle it is written with; other tags
// stay as they are.
func (d directives) tag(tag string) string {
	if verbatim, ok := strings.CutPrefix(tag, "!<"); ok {
		if name, ok := strings.CutPrefix(strings.TrimSuffix(verbatim, ">"), coreTags); ok {
			return "!!" + name
		}
		return tag
	}
	end := strings.LastIndexByte(tag, '!') + 1
	prefix, known := d.tags[tag[:end]]
	if !known || end == len(tag) {
		return tag
	}
	if name, ok := strings.CutPrefix(prefix+tag[end:], coreTags); ok {
		return "!!" + name
	}
	return prefix + tag[end:]
}
