package mail

import (
	"encoding/json"
	"errors"
	htmltemplate "html/template"
	"io"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode"
	"unicode/utf8"
)

// maxRendered bounds what a template may write. user_metadata can be repeated by a range, and a mail
// that no server takes is no use.
const maxRendered = 2 << 20

// maxSubject bounds a subject, in runes: user_metadata may stand in it.
const maxSubject = 400

var errTooLong = errors.New("the template writes more than 2 MiB")

// variables are what templates see. A name that isn't there, in Data too, renders empty.
func (v Vars) variables() map[string]any {
	data := map[string]any{}
	if len(v.Data) > 0 {
		d := json.NewDecoder(strings.NewReader(string(v.Data)))
		d.UseNumber() // 12345678901 must not become 1.2345678901e+10
		if d.Decode(&data) != nil || data == nil {
			data = map[string]any{}
		}
	}
	return map[string]any{
		"SiteURL": v.SiteURL, "Email": v.Email, "NewEmail": v.NewEmail, "OldEmail": v.OldEmail,
		"Phone": v.Phone, "OldPhone": v.OldPhone, "SendingTo": v.SendingTo,
		"Token": v.Token, "TokenHash": v.TokenHash, "RedirectTo": v.RedirectTo,
		"ConfirmationURL": v.ConfirmationURL, "Provider": v.Provider, "FactorType": v.FactorType,
		"Data": data,
	}
}

// body is the HTML of a mail. Its values are escaped for where they stand.
type body struct{ t *htmltemplate.Template }

func parseBody(text string) (*body, error) {
	t, err := htmltemplate.New("body").Parse(text)
	if err != nil {
		return nil, err
	}
	// html/template looks for the places of values at the first use only. Other errors of this trial are about its
	// empty values.
	if err := t.Execute(io.Discard, Vars{}.variables()); err != nil {
		if _, bad := errors.AsType[*htmltemplate.Error](err); bad {
			return nil, err
		}
	}
	return &body{t}, nil
}

func (b *body) render(variables map[string]any) (string, error) {
	var out limited
	err := b.t.Execute(&out, variables)
	return strings.ToValidUTF8(out.String(), "\uFFFD"), err
}

// subject is plain text: the HTML escaping of bodies would turn + and ' into entities.
type subject struct{ t *template.Template }

func parseSubject(text string) (*subject, error) {
	t, err := template.New("subject").Funcs(template.FuncMap{"_shown": shown}).Parse(text)
	if err != nil {
		return nil, err
	}
	for _, part := range t.Templates() {
		if part.Tree != nil {
			showMissing(part.Root)
		}
	}
	return &subject{t}, nil
}

// render makes one line of it whatever the values hold, so that no value can begin another header.
func (s *subject) render(variables map[string]any) (string, error) {
	var out limited
	if err := s.t.Execute(&out, variables); err != nil {
		return "", err
	}
	line := oneLine(out.String())
	if utf8.RuneCountInString(line) > maxSubject {
		line = string([]rune(line)[:maxSubject-1]) + "…"
	}
	return line, nil
}

// oneLine replaces each run of blanks, line breaks and control characters by one blank.
func oneLine(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || r == '\u2028' || r == '\u2029'
	}), " ")
}

// shown is put behind every value of a subject, so that a missing one is empty: text/template would
// write "<no value>".
func shown(values ...any) any {
	if len(values) == 0 || values[len(values)-1] == nil {
		return ""
	}
	return values[len(values)-1]
}

// showMissing appends shown to each pipeline that prints.
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

// limited is a buffer that refuses to grow beyond maxRendered.
type limited struct{ strings.Builder }

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxRendered {
		return 0, errTooLong
	}
	return l.Builder.Write(p)
}

func (l *limited) WriteString(s string) (int, error) { return l.Write([]byte(s)) }
