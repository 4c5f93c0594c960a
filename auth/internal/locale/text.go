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

// maxRendered is how many bytes a template may write. A range can repeat user_metadata, and no server accepts a huge
// mail.
const maxRendered = 2 << 20

// ErrTooLong is the error of a template that writes without end.
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

// OneLine replaces each run of blanks, line breaks and control characters by one blank.
func OneLine(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
	}), " ")
}

// Short cuts a text to most characters; the last one shows that the text was cut.
func Short(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

// shown is applied to every value, so that a missing value is empty: text/template would write "<no value>".
func shown(values ...any) any {
	if len(values) == 0 || values[len(values)-1] == nil {
		return ""
	}
	return values[len(values)-1]
}

// showMissing appends shown to each pipeline that prints a value.
func showMissing(n parse.Node) {
	branch := func(b *parse.BranchNode) {
		showMissing(b.List)
		if b.ElseList != nil {
			showMissing(b.ElseList)
		}
	}
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, child := range n.Nodes {
			showMissing(child)
		}
	case *parse.ActionNode:
		if len(n.Pipe.Decl) > 0 {
			return // {{ $x := … }} prints nothing
		}
		id := parse.NewIdentifier("_shown").SetTree(nil).SetPos(n.Pos)
		n.Pipe.Cmds = append(n.Pipe.Cmds,
			&parse.CommandNode{NodeType: parse.NodeCommand, Pos: n.Pos, Args: []parse.Node{id}})
	case *parse.IfNode:
		branch(&n.BranchNode)
	case *parse.WithNode:
		branch(&n.BranchNode)
	case *parse.RangeNode:
		branch(&n.BranchNode)
	}
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

// Where returns the file and the line that the text is from.
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

// AppendVariables appends the names of the variables that a template uses: x of $.x, and of .x outside of range and
// with, where the dot is another value.
func AppendVariables(names []string, n parse.Node) []string {
	switch n := n.(type) {
	case *parse.ListNode:
		if n != nil {
			for _, child := range n.Nodes {
				names = AppendVariables(names, child)
			}
		}
	case *parse.ActionNode:
		return AppendVariables(names, n.Pipe)
	case *parse.TemplateNode:
		return AppendVariables(names, n.Pipe)
	case *parse.PipeNode:
		if n != nil {
			for _, c := range n.Cmds {
				for _, arg := range c.Args {
					names = AppendVariables(names, arg)
				}
			}
		}
	case *parse.ChainNode:
		return AppendVariables(names, n.Node)
	case *parse.FieldNode:
		return append(names, n.Ident[0])
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			return append(names, n.Ident[1])
		}
	case *parse.IfNode:
		names = AppendVariables(AppendVariables(names, n.Pipe), n.List)
		return AppendVariables(names, n.ElseList)
	case *parse.WithNode:
		return appendBranch(names, &n.BranchNode)
	case *parse.RangeNode:
		return appendBranch(names, &n.BranchNode)
	}
	return names
}

// rooted matches variables of the outer dot.
var rooted = regexp.MustCompile(`\$\.([A-Za-z]+)`)

// appendBranch appends the variables of a branch, without fields of another dot.
func appendBranch(names []string, b *parse.BranchNode) []string {
	names = AppendVariables(names, b.Pipe)
	for _, m := range rooted.FindAllStringSubmatch(b.List.String(), -1) {
		names = append(names, m[1])
	}
	return AppendVariables(names, b.ElseList)
}
