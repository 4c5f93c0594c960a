package mail

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/auth/internal/locale"
)

// mostHTML is the size of HTML, in bytes, above which Lint warns. Gmail clips mails at 102 KiB, and the values of users
// need some of that.
const mostHTML = 90 << 10

// Doubt describes something about a template that is probably wrong. Where is the file or setting.
type Doubt struct {
	Where, Text string
	// Unknown is the name of a variable that does not exist; Known are the names of all variables that do. Both are
	// empty for other doubts.
	Unknown string
	Known   []string
}

// linter collects the errors and doubts of Lint.
type linter struct {
	broken []error
	doubts []Doubt
}

// Lint tests every template in use with the data of Sample. Load must have been called. Lint returns the errors of
// templates that cannot be used, and doubts about the others.
func (r *Renderer) Lint(ctx context.Context) (broken []error, doubts []Doubt) {
	t, l, names := r.texts.Load(), new(linter), VariableNames()
	for _, kind := range Kinds {
		if s := t.subjects[kind]; s != nil {
			l.unknown("AUTH_MAILER_SUBJECTS_"+kind.Setting(), s.Variables(), names)
		}
		if remote := t.bodies[kind]; remote != nil && remote.good != nil {
			l.body("AUTH_MAILER_TEMPLATES_"+kind.Setting(), kind, remote.good)
		}
	}
	if t.Folder != nil {
		l.folder(t, names)
	}
	for _, name := range SampleNames() {
		for _, tag := range t.Languages.Tags() {
			p := Sample(name, "http://localhost", "http://localhost", time.Now())
			p.Locales = []string{tag}
			m, err := r.Render(ctx, p)
			for _, fault := range m.Faults {
				err = fmt.Errorf("%s in %s: %s", name, m.Locale, fault)
				if !slices.ContainsFunc(l.broken, func(e error) bool { return e.Error() == err.Error() }) {
					l.broken = append(l.broken, err)
				}
			}
			if len(m.HTML) > mostHTML {
				l.doubts = append(l.doubts, Doubt{Where: name, Text: fmt.Sprintf(
					"has %d KiB of HTML; Gmail clips mails of more than 102", len(m.HTML)>>10)})
			}
		}
	}
	return l.broken, l.doubts
}

// folder tests the files of the operator's folder of templates.
func (l *linter) folder(t *texts, names []string) {
	l.broken = append(l.broken, t.Folder.Errors...)
	if b := t.Folder.layout; b != nil {
		l.unknown("layout.html", b.variables(), append(names, "Frame"))
	}
	for _, kind := range Kinds {
		for tag, b := range t.Folder.bodies[kind] {
			name := strings.TrimSuffix(strings.ToLower(kind.Setting())+"."+tag, ".") + ".html"
			if !t.fixed(kind) {
				l.body(name, kind, b)
			}
		}
	}
	for _, all := range t.Folder.Strings {
		for key, text := range all {
			if strings.HasPrefix(key, "mails.") || strings.HasPrefix(key, "common.") {
				l.unknown(text.Where()+": "+key, text.Variables(), append(names, "Addressee"))
			}
		}
	}
	slices.SortFunc(l.doubts, func(a, b Doubt) int { return strings.Compare(a.Where, b.Where) })
}

func (l *linter) body(where string, kind Kind, b *body) {
	used := b.variables()
	l.unknown(where, used, VariableNames())
	if kind.hasLink() && !slices.Contains(used, "ConfirmationURL") && !slices.Contains(used, "TokenHash") &&
		!slices.Contains(used, "Token") {
		l.doubts = append(l.doubts, Doubt{Where: where,
			Text: "uses none of ConfirmationURL, TokenHash and Token: its mails can't be answered"})
	}
}

func (l *linter) unknown(where string, used, known []string) {
	for _, name := range used {
		if !slices.Contains(known, name) {
			l.doubts = append(l.doubts, Doubt{Where: where, Text: "there is no variable " + name, Unknown: name, Known: known})
		}
	}
}

// variables returns the names of the variables that the template uses, sorted.
func (b *body) variables() []string {
	var names []string
	for _, part := range b.t.Templates() {
		if part.Tree != nil {
			names = locale.AppendVariables(names, part.Tree.Root)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
