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
	d.addEmail(t.claims.text("email"), true, true)
	if t.claims.at("is_private_email") != nil {
		d.setCustom("is_private_email", t.claims.lenient("is_private_email"))
	}
	d.setCustom("auth_time", t.claims.at("auth_time"))
	d.setCustom("transfer_sub", t.claims.at("transfer_sub"))
}

// appleName takes the name out of the form field user, which comes with the first consent only. Anybody
// can write that field, so its address is not looked at.
func appleName(user string, d *Profile) error {
	if user == "" {
		return nil
	}
	o, err := decodeObject([]byte(user))
	if err != nil {
		return errors.New("the field user is no JSON object")
	}
	d.set("name full_name", strings.TrimSpace(o.text("name.firstName")+" "+o.text("name.lastName")))
	return nil
}
