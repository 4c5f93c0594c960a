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

// maxSubject is the greatest length of a subject, in runes. A subject may contain user_metadata, which users write.
const maxSubject = 400

// variables are the values that a template can use, by name. An unknown name renders as an empty text, even inside of
// Data.
type variables map[string]any

func (v Vars) variables() variables {
	data := map[string]any{}
	if len(v.Data) > 0 {
		d := json.NewDecoder(strings.NewReader(string(v.Data)))
		d.UseNumber() // otherwise 12345678901 would become 1.2345678901e+10
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

// VariableNames returns the names of all variables that templates can use, sorted.
func VariableNames() []string {
	v := Vars{}.variables()
	v.addSite(Site{}, (*locale.Catalog)(nil).Default(), &Payload{})
	return slices.Sorted(maps.Keys(v))
}

// body is the HTML template of a mail's body. The values are escaped as their place in the HTML requires.
type body struct{ t *htmltemplate.Template }

func parseBody(text string) (*body, error) { return parseNamed("body", text) }

// parseNamed parses a template. name appears in its errors.
func parseNamed(name, text string) (*body, error) {
	t, err := htmltemplate.New(name).Parse(text)
	if err != nil {
		return nil, err
	}
	// html/template checks only at the first execution whether values can be escaped at their places. Such an error has
	// the type *htmltemplate.Error. Other errors of this execution are caused by the empty values.
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

// subjectLine removes line breaks from a subject, so that no value in it can begin another header, and shortens it.
func subjectLine(text string) string {
	return locale.Short(locale.OneLine(text), maxSubject)
}
