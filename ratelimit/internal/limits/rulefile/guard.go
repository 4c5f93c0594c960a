package rulefile

import (
	"fmt"
	"strings"

	"github.com/goccy/go-yaml/token"
)

// The library's parser recurses once for each level of nesting and once for each key of a block map, without a bound,
// and takes time in the square of the keys of one map or of the errors on one line. A stack overflow cannot be
// recovered from, so guard checks the tokens first. No rule file comes near these numbers.
const (
	// maxDepth bounds the nesting of a file. Requests have at most 64 entries by default, for which 130 levels suffice.
	maxDepth = 1000
	// maxKeys bounds the keys of one block map; only metadata has keys that are not fixed.
	maxKeys = 1000
	// maxMerges bounds the merge keys of a file; each costs some 5 KB.
	maxMerges = 10000
	// maxMarks bounds colons on one line outside flow style, and directives.
	maxMarks = 100
)

// guard refuses a text that would take the parser too deep or too long.
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
	flow       int // open brackets and braces
	line       int
	marks      int // on this line
	colons     int // on this line
	directives int
	merges     int
	content    bool         // there is content before this token
	second     *token.Token // the beginning of a further document, which may be empty
	maps       []keyRun     // open block maps
}

// keyRun is a block map whose keys begin at a column.
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

// over increments n and returns an error text if n exceeds most.
func over(n *int, most int, of string) string {
	if *n++; *n > most {
		return fmt.Sprintf("more than %d %s", most, of)
	}
	return ""
}

// named reports whether a name follows the star of an alias.
func named(alias *token.Token) bool {
	n := alias.Next
	return n != nil && n.Position != nil && n.Position.Offset == alias.Position.Offset+1 &&
		!strings.ContainsAny(n.Value[:min(len(n.Value), 1)], "*,]}")
}

// end closes the maps to the right of a column.
func (g *complexityCheck) end(column int) {
	for len(g.maps) > 0 && g.maps[len(g.maps)-1].column > column {
		g.maps = g.maps[:len(g.maps)-1]
	}
}

// key counts the key before a colon and returns how many keys its map has so far.
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
