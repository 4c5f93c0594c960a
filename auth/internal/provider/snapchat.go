package provider

import "context"

// snapchatQuery is "{ me { externalId displayName bitmoji { avatar id } email } }".
const snapchatQuery = "%7B+me+%7B+externalId+displayName+bitmoji+%7B+avatar+id+%7D+email+%7D+%7D"

func snapchatMore(_ context.Context, s *signIn, _ jsonObject, d *Profile) error {
	d.set("iss", s.trust().issuer)
	return nil
}

func snapchatClaims(p *Provider, t *idToken, d *Profile) {
	standardClaims(p, t, d)
	for i := range d.Emails {
		d.Emails[i].Verified = true
	}
}
