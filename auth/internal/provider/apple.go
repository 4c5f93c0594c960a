package provider

import (
	"context"
	"errors"
	"strings"
)

// appleFormFields repeats the credentials once more, as its endpoint has always been given them. The secret is
// a JWT that the operator made.
func appleFormFields(p *Provider) map[string]string {
	return map[string]string{"secret": p.client.Secret}
}

func appleProfile(ctx context.Context, s *signIn) (Profile, error) {
	d, err := fromIDToken(ctx, s)
	if err != nil {
		return Profile{}, err
	}
	return d, appleName(s.callback.Get("user"), &d)
}

// appleClaims: Apple gives proven addresses only. is_private_email may arrive as text (note A).
func appleClaims(_ *Provider, t *idToken, d *Profile) {
	d.addEmail(t.claims.textAt("email"), true, true)
	if t.claims.lookup("is_private_email") != nil {
		d.setCustom("is_private_email", t.claims.isTrueOrText("is_private_email"))
	}
	d.setCustom("auth_time", t.claims.lookup("auth_time"))
	d.setCustom("transfer_sub", t.claims.lookup("transfer_sub"))
}

// appleName takes the name out of the form field user, which comes with the first consent only. Any client can write
// that field, so its address is not read.
func appleName(user string, d *Profile) error {
	if user == "" {
		return nil
	}
	o, err := decodeObject([]byte(user))
	if err != nil {
		return errors.New("the field user is no JSON object")
	}
	d.set("name full_name", strings.TrimSpace(o.textAt("name.firstName")+" "+o.textAt("name.lastName")))
	return nil
}
