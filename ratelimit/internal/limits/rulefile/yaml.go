package rulefile

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"gatehouse/ratelimit/internal/limits"
)

const (
	// maxExpansion bounds how many values aliases may add to the values written in a file. Without a bound, ten lines
	// in which aliases refer to aliases can stand for more values than memory holds.
	maxExpansion = 1_000_000
	// MaxFileBytes bounds the size of one file; 100,000 rules are about 10 MB.
	MaxFileBytes = 64 << 20
)

// starNeedsQuotes is the message about a value such as `value: *`.
const starNeedsQuotes = "a text that begins with * must stand in quotes: without them it is an alias"

const secondDocument = "a second YAML document begins here; a file holds one domain, so put each document into a " +
	"file of its own"

// notYAML begins the messages that repeat an error of the YAML library.
const notYAML = "not YAML: "

// syntax is the error for a text that is not the YAML of a rule file.
type syntax struct {
	pos     limits.Pos
	message string
}

// parseYAML turns the text of one file into nodes. It never panics, and its time grows only in proportion to the text.
// slow says why goccy/go-yaml had to read the file; it is empty if readPlain could.
func parseYAML(text string, d directives, rep *limits.Report) (root *node, slow obstacle, bad *syntax) {
	root, slow = readPlain(text, nil)
	if root != nil {
		return root, obstacle{}, nil
	}
	if bad := findInvalidByte(text); bad != nil {
		return nil, obstacle{}, bad
	}
	type result struct {
		root *node
		bad  *syntax
	}
	done := make(chan result, 1)
	go func() { // in a goroutine, because the library cannot be interrupted
		root, bad := parseAnyYAML(text, d)
		done <- result{root, bad}
	}()
	select {
	case r := <-done:
		return r.root, slow, r.bad
	case <-rep.Done():
		return nil, slow, &syntax{message: "the load was abandoned"}
	}
}

// normalizeNewlines replaces CR LF by \n.
func normalizeNewlines(text string) string {
	if !strings.Contains(text, "\r\n") {
		return text
	}
	return strings.ReplaceAll(text, "\r\n", "\n")
}

// findInvalidByte returns an error for the first byte that YAML does not allow. The library would replace the byte and
// continue.
func findInvalidByte(text string) *syntax {
	at := limits.Pos{Line: 1, Column: 1}
	for i, r := range text {
		switch {
		case r == '\n':
			at = limits.Pos{Line: at.Line + 1, Column: 1}
			continue
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd"):
			return &syntax{at, fmt.Sprintf("byte 0x%02x is not UTF-8; save the file as UTF-8", text[i])}
		case r < ' ' && r != '\t' && r != '\r' || r == 0x7f:
			return &syntax{at, fmt.Sprintf("control character 0x%02x must be written as an escape in double quotes", r)}
		}
		at.Column++
	}
	return nil
}

// parseAnyYAML reads a text with goccy/go-yaml, which knows all of YAML.
func parseAnyYAML(text string, d directives) (root *node, bad *syntax) {
	defer func() {
		// A fault in the YAML library must not end a daemon that serves requests by rules it has loaded before.
		if r := recover(); r != nil {
			root, bad = nil, &syntax{limits.Pos{Line: 1, Column: 1},
				fmt.Sprintf("this text can't be read as YAML (%v)", r)}
		}
	}()
	text = normalizeNewlines(text) // the library counts a line twice if its CR LF follows a comment
	root, bad = parseWithLibrary(text, d)
	if bad != nil && strings.Contains(text, "\t") {
		if spaced := spacesInFlow(text); spaced != text { // the library refuses tabs before keys, which YAML allows
			return parseWithLibrary(spaced, d)
		}
	}
	return root, bad
}

func parseWithLibrary(text string, d directives) (root *node, bad *syntax) {
	tokens := lexer.Tokenize(text)
	if bad := guard(tokens); bad != nil {
		return nil, bad
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, inPlainWords(text, tokens, syntaxOf(err))
	}
	return builder{anchors: map[string]*node{}, directives: d}.file(file)
}

// spacesInFlow replaces tabs between the parts of flow style ({…} and […]) by spaces, and tabs in double quotes within
// flow style by escapes. YAML allows these tabs; the library does not.
func spacesInFlow(text string) string {
	b := make([]byte, 0, len(text)+64)
	depth, quote, comment := 0, byte(0), false
	for i := 0; i < len(text); i++ {
		c, before := text[i], byte('\n')
		if i > 0 {
			before = text[i-1]
		}
		switch {
		case comment:
			comment = c != '\n'
		case quote != 0 && i+1 < len(text) &&
			(quote == '"' && c == '\\' || quote == '\'' && c == '\'' && text[i+1] == '\''):
			b = append(b, c)
			if i++; text[i] == '\t' {
				b = append(b, 't')
				continue
			}
			c = text[i]
		case c == quote:
			quote = 0
		case c == '\t' && quote == '"' && depth > 0:
			b = append(b, `\t`...)
			continue
		case quote != 0:
		case c == '#' && (before == '\n' || blank(before)):
			comment = true
		case (c == '"' || c == '\'') && (before == '\n' || blank(before) || strings.IndexByte("[{,:", before) >= 0):
			quote = c
		case (c == '[' || c == '{') && (depth > 0 || before == '\n' || blank(before)):
			depth++
		case (c == ']' || c == '}') && depth > 0:
			depth--
		case c == '\t' && depth > 0:
			c = ' '
		}
		b = append(b, c)
	}
	return string(b)
}

// syntaxOf returns an error of the library's parser, with its position and reason.
func syntaxOf(err error) *syntax {
	e, ok := err.(interface {
		GetMessage() string
		GetToken() *token.Token
	})
	if !ok {
		return &syntax{limits.Pos{Line: 1, Column: 1}, notYAML + firstLine(err.Error())}
	}
	// Do not use err.Error(): it prints the text around the error, in time that grows with the square of that text.
	s := &syntax{limits.Pos{Line: 1, Column: 1}, notYAML + firstLine(e.GetMessage())}
	if t := e.GetToken(); t != nil && t.Position != nil {
		s.pos = positionOf(t)
	}
	return s
}

// firstLine returns the part of a library's message that our messages repeat.
func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if len(s) > 2*limits.MaxQuoted {
		return s[:2*limits.MaxQuoted] + "…"
	}
	return s
}

func positionOf(t *token.Token) limits.Pos {
	if t == nil || t.Position == nil {
		return limits.Pos{Line: 1, Column: 1}
	}
	return limits.Pos{Line: int32(max(t.Position.Line, 1)), Column: int32(max(t.Position.Column, 1))}
}

// builder turns the library's syntax tree of one file into nodes. It resolves aliases and merge keys.
type builder struct {
	directives
	anchors map[string]*node // name of an anchor -> its value; nil while the value is being read
	err     *syntax
	extra   int64 // number of values that aliases have added so far
}

func (b builder) file(f *ast.File) (*node, *syntax) {
	var docs []*ast.DocumentNode
	for _, d := range f.Docs {
		if _, directive := d.Body.(*ast.DirectiveNode); directive || d.Body == nil &&
			(d.Start == nil || len(docs) > 0) {
			continue
		}
		docs = append(docs, d)
	}
	if len(docs) > 1 {
		at := limits.Pos{Line: 1, Column: 1}
		if docs[1].Start != nil {
			at = positionOf(docs[1].Start)
		} else if docs[1].Body != nil {
			at = positionOf(docs[1].Body.GetToken())
		}
		return nil, &syntax{at, secondDocument}
	}
	if len(docs) == 0 || docs[0].Body == nil {
		return &node{plain: true, pos: limits.Pos{Line: 1, Column: 1}, weight: 1, depth: 1}, nil
	}
	n := b.node(docs[0].Body, limits.Pos{Line: 1, Column: 1})
	return n, b.err
}

func (b *builder) fail(p limits.Pos, format string, args ...any) *node {
	if b.err == nil {
		b.err = &syntax{p, fmt.Sprintf(format, args...)}
	}
	return &node{plain: true, pos: p, weight: 1, depth: 1}
}

// node converts one value of the syntax tree. at is the position for a null that is not written out, which has none.
func (b *builder) node(n ast.Node, at limits.Pos) *node {
	if b.err != nil || n == nil {
		return &node{plain: true, pos: at, weight: 1, depth: 1}
	}
	switch n := n.(type) {
	case *ast.StringNode:
		plain := n.Token.Type != token.SingleQuoteType && n.Token.Type != token.DoubleQuoteType
		return leaf(n.Value, plain, positionOf(n.Token))
	case *ast.NullNode:
		if strings.TrimSpace(n.Token.Origin) == "" {
			return leaf("", true, at)
		}
		return leaf(n.Token.Value, true, positionOf(n.Token))
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return leaf(n.GetToken().Value, true, positionOf(n.GetToken()))
	case *ast.LiteralNode:
		return leaf(n.Value.Value, false, positionOf(n.Start))
	case *ast.SequenceNode:
		return b.list(n)
	case *ast.MappingNode:
		return b.pairs(n.Values, positionOf(n.GetToken()))
	case *ast.MappingValueNode:
		return b.pairs([]*ast.MappingValueNode{n}, positionOf(n.Key.GetToken()))
	case *ast.MappingKeyNode:
		return b.node(n.Value, positionOf(n.Start))
	case *ast.AnchorNode:
		name := n.Name.GetToken().Value
		b.anchors[name] = nil
		v := b.node(n.Value, positionOf(n.Start))
		b.anchors[name] = v
		return v
	case *ast.AliasNode:
		return b.alias(n)
	case *ast.TagNode:
		return b.tagged(n)
	}
	return b.fail(positionOf(n.GetToken()), "%s has no meaning here", n.Type())
}

func leaf(text string, plain bool, p limits.Pos) *node {
	return &node{plain: plain, pos: p, text: text, weight: 1, depth: 1}
}

func (b *builder) list(n *ast.SequenceNode) *node {
	out := &node{kind: listNode, pos: positionOf(n.Start), pairs: make([]pair, len(n.Values))}
	for i, v := range n.Values {
		out.pairs[i].value = b.node(v, out.pos)
	}
	return b.weigh(out)
}

func (b *builder) pairs(values []*ast.MappingValueNode, p limits.Pos) *node {
	out := &node{kind: mapNode, pos: p, pairs: make([]pair, 0, len(values))}
	if len(values) > 0 {
		out.pos = positionOf(values[0].Key.GetToken())
	}
	var merged []*node
	for _, v := range values {
		if _, ok := v.Key.(*ast.MergeKeyNode); ok {
			at := positionOf(v.Key.GetToken())
			if len(merged) > 0 {
				return b.fail(at, "<< stands twice in one map; one may take a list: <<: [*a, *b]")
			}
			merged = append(merged, b.node(v.Value, positionOf(v.Start)))
			continue
		}
		key := b.node(v.Key, positionOf(v.Start))
		out.pairs = append(out.pairs, pair{key, b.node(v.Value, key.pos)})
	}
	if len(merged) > 0 {
		have := make(map[string]bool, len(out.pairs))
		for _, p := range out.pairs {
			have[p.key.text] = true
		}
		for _, m := range merged {
			b.merge(out, m, have)
		}
	}
	return b.weigh(out)
}

// merge adds the pairs of from, the value of a << key, to the map into, except for keys in have. Earlier pairs win.
func (b *builder) merge(into, from *node, have map[string]bool) {
	switch from.kind {
	case mapNode:
		if b.extra += int64(len(from.pairs)); b.extra > maxExpansion {
			b.fail(from.pos, "aliases stand for more than %d values", maxExpansion)
			return
		}
		for _, p := range from.pairs {
			if !have[p.key.text] {
				have[p.key.text] = true
				into.pairs = append(into.pairs, p)
			}
		}
	case listNode:
		for _, p := range from.pairs {
			if item := p.value; item.kind != mapNode {
				b.fail(item.pos, "<< takes a map or a list of maps, not %s", item.what())
				return
			}
			b.merge(into, p.value, have)
		}
	default:
		b.fail(from.pos, "<< takes a map or a list of maps, not %s", from.what())
	}
}

func (b *builder) alias(n *ast.AliasNode) *node {
	at := positionOf(n.Start)
	name := n.Value.GetToken().Value
	target, ok := b.anchors[name]
	switch {
	case !ok:
		return b.fail(at, "alias *%s has no anchor &%s before it; %s", limits.OneLine(name), limits.OneLine(name),
			starNeedsQuotes)
	case target == nil:
		return b.fail(at, "alias *%s stands inside its own anchor", limits.OneLine(name))
	}
	if b.extra += int64(target.weight); b.extra > maxExpansion {
		return b.fail(at, "aliases stand for more than %d values", maxExpansion)
	}
	return target
}

// tagged reads a value that has one of YAML's own tags; !!str makes any plain scalar a text.
func (b *builder) tagged(n *ast.TagNode) *node {
	at := positionOf(n.Start)
	v := b.node(n.Value, at)
	switch tag := b.tag(n.Start.Value); tag {
	case "!!str", "!":
		if v.kind == textNode && v.plain {
			v = leaf(v.text, false, v.pos)
		}
	case "!!int", "!!bool", "!!float", "!!null":
		if v.kind == textNode && !v.plain {
			v = leaf(v.text, true, v.pos)
		}
	case "!!map", "!!seq":
	default:
		return b.fail(at, "tag %s is not known; allowed are !!str, !!int, !!bool, !!float, !!null, !!map or !!seq",
			limits.OneLine(tag))
	}
	return v
}

// weigh computes a node's weight and depth from the weights and depths of its children.
func (b *builder) weigh(n *node) *node {
	n.weight, n.depth = 1, 1
	for _, p := range n.pairs {
		if p.key != nil {
			n.weight += p.key.weight
			n.depth = max(n.depth, p.key.depth+1)
		}
		n.weight += p.value.weight
		n.depth = max(n.depth, p.value.depth+1)
	}
	if n.depth > maxDepth {
		b.fail(n.pos, "nested deeper than %d levels", maxDepth)
	}
	return n
}
