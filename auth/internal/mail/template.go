package mail

import (
	"encoding/json"
	"errors"
	htmltemplate "html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"gatehouse/auth/internal/locale"
)

// maxSubject is how many runes a subject may have, since it may contain user_metadata.
const maxSubject = 400

// variables are the variables of templates. An unknown name, even in Data, renders empty.
type variables map[string]any

func (v Vars) variables() variables {
	data := map[string]any{}
	if len(v.Data) > 0 {
		d := json.NewDecoder(strings.NewReader(string(v.Data)))
		d.UseNumber() // keeps 12345678901 from becoming 1.2345678901e+10
		if d.Decode(&data) != nil || data == nil {
			data = map[string]any{}
		}
	}
	return variables{
		"SiteURL": v.SiteURL, "Email": v.Email, "NewEmail": v.NewEmail, "OldEmail": v.OldEmail,
		"Phone": v.Phone, "OldPhone": v.OldPhone, "SendingTo": v.SendingTo,
		"Token": v.Token, "TokenHash": v.TokenHash, "RedirectTo": v.RedirectTo,
		"ConfirmationURL": v.ConfirmationURL, "Provider": v.Provider, "FactorType": v.FactorType,
		"FriendlyName": v.FriendlyName, "Data": data,
	}
}

// VariableNames returns the names of all variables, sorted.
func VariableNames() []string {
	v := Vars{}.variables()
	v.addSite(Site{}, (*locale.Catalog)(nil).Default(), &Payload{})
	return slices.Sorted(maps.Keys(v))
}

// body is a template of the HTML of a mail. Values are escaped for their context.
type body struct{ t *htmltemplate.Template }

func parseBody(text string) (*body, error) { return parseNamed("body", text) }

// parseNamed is parseBody for a file, whose name is in errors.
func parseNamed(name, text string) (*body, error) {
	t, err := htmltemplate.New(name).Parse(text)
	if err != nil {
		return nil, err
	}
	// html/template checks the contexts of values only at the first use. Other errors of this execution are about the
	// empty values.
	if err := t.Execute(io.Discard, Vars{}.variables()); err != nil {
		if _, bad := errors.AsType[*htmltemplate.Error](err); bad {
			return nil, err
		}
	}
	return &body{t}, nil
}

func (b *body) render(values variables) (string, error) {
	var out locale.Limited
	err := b.t.Execute(&out, values)
	return strings.ToValidUTF8(out.String(), "\uFFFD"), err
}

// subjectLine makes a subject one line, whatever its values contain, so that no value can begin another header.
func subjectLine(text string) string {
	return locale.Short(locale.OneLine(text), maxSubject)
}
