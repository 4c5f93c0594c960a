package provider

import (
	"context"
	"slices"
)

// keycloakTrust: the realm's URL is its issuer.
func keycloakTrust(p *Provider) trust { return trust{issuer: p.base} }

// keycloakMore keeps all that a realm's administrator lets the profile hold.
func keycloakMore(_ context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("iss", s.base)
	for name, value := range me {
		if !slices.Contains([]string{"sub", "name", "email", "email_verified"}, name) {
			d.setCustom(name, value)
		}
	}
	return nil
}
