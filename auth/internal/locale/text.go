package locale

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode"
	"unicode/utf8"
)

// maxRendered is how many bytes a template may write. A range can repeat user_metadata many times, and no mail server
// accepts a huge mail.
const maxRendered = 2 << 20

// ErrTooLong is returned if a template writes more than maxRendered.
var ErrTooLong = errors.New("the template writes more than 2 MiB")

// Text is a template of plain text.
type Text struct {
	t     *template.Template
	where string
}

// ParseText parses a template.
func ParseText(text string) (*Text, error) {
	t, err := template.New("text").Funcs(template.FuncMap{"_shown": shown}).Parse(text)
	if err != nil {
		return nil, err
	}
	for _, part := range t.Templates() {
		if part.Tree != nil {
			showMissing(part.Root)
		}
	}
	return &Text{t: t}, nil
}

// Render returns the text with the values of variables.
func (s *Text) Render(variables map[string]any) (string, error) {
	var out Limited
	err := s.t.Execute(&out, variables)
	return out.String(), err
}

// OneLine replaces each run of spaces, line breaks and control characters by one space.
func OneLine(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
	}), " ")
}

// Short cuts a text to the number of characters in most. If anything is cut off, the last character is an ellipsis.
func Short(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

// shown is applied to every value in a template, so that a missing value is empty: text/template would write "<no
// value>".
func shown(values ...any) any {
	if len(values) == 0 || values[len(values)-1] == nil {
		return ""
	}
	return values[len(values)-1]
}

// showMissing appends a call of shown to each pipeline in a template that prints a value.
func showMissing(root parse.Node) {
	walk(root, func(n parse.Node) bool {
		action, ok := n.(*parse.ActionNode)
		if ok && len(action.Pipe.Decl) == 0 { // {{ $x := … }} prints nothing
			id := parse.NewIdentifier("_shown").SetTree(nil).SetPos(action.Pos)
			action.Pipe.Cmds = append(action.Pipe.Cmds,
				&parse.CommandNode{NodeType: parse.NodeCommand, Pos: action.Pos, Args: []parse.Node{id}})
		}
		return !ok
	})
}

// walk calls visit for a node of a template and, if visit returns true, for the nodes below it.
func walk(n parse.Node, visit func(parse.Node) bool) {
	if !visit(n) {
		return
	}
	var below []parse.Node
	switch n := n.(type) {
	case *parse.ListNode:
		if n != nil {
			below = n.Nodes
		}
	case *parse.PipeNode:
		if n != nil {
			for _, c := range n.Cmds {
				below = append(below, c.Args...)
			}
		}
	case *parse.ActionNode:
		below = []parse.Node{n.Pipe}
	case *parse.TemplateNode:
		below = []parse.Node{n.Pipe}
	case *parse.ChainNode:
		below = []parse.Node{n.Node}
	}
	if b := branchOf(n); b != nil {
		below = []parse.Node{b.Pipe, b.List, b.ElseList}
	}
	for _, child := range below {
		walk(child, visit)
	}
}

// branchOf returns the parts of an if, with or range node; nil for any other node.
func branchOf(n parse.Node) *parse.BranchNode {
	switch n := n.(type) {
	case *parse.IfNode:
		return &n.BranchNode
	case *parse.WithNode:
		return &n.BranchNode
	case *parse.RangeNode:
		return &n.BranchNode
	}
	return nil
}

// Limited is a buffer that refuses to grow beyond maxRendered.
type Limited struct{ strings.Builder }

// Write implements io.Writer.
func (l *Limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxRendered {
		return 0, ErrTooLong
	}
	return l.Builder.Write(p)
}

// WriteString implements io.StringWriter.
func (l *Limited) WriteString(s string) (int, error) { return l.Write([]byte(s)) }

// Where returns the file and the line from which the text comes.
func (s *Text) Where() string { return s.where }

// Variables returns the names of the variables that the text uses, sorted.
func (s *Text) Variables() []string {
	var names []string
	for _, part := range s.t.Templates() {
		if part.Tree != nil {
			names = AppendVariables(names, part.Root)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// rooted matches variables of the outermost dot, such as $.Name.
var rooted = regexp.MustCompile(`\$\.([A-Za-z]+)`)

// AppendVariables appends the names of the variables that a template uses: x for each $.x, and x for each .x outside of
// range and with, inside which the dot stands for another value.
func AppendVariables(names []string, root parse.Node) []string {
	walk(root, func(n parse.Node) bool {
		switch n := n.(type) {
		case *parse.FieldNode:
			names = append(names, n.Ident[0])
		case *parse.VariableNode:
			if n.Ident[0] == "$" && len(n.Ident) > 1 {
				names = append(names, n.Ident[1])
			}
		case *parse.WithNode, *parse.RangeNode:
			b := branchOf(n)
			names = AppendVariables(names, b.Pipe)
			for _, m := range rooted.FindAllStringSubmatch(b.List.String(), -1) {
				names = append(names, m[1])
			}
			names = AppendVariables(names, b.ElseList)
			return false
		}
		return true
	})
	return names
}
