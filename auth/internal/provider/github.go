package provider

import "context"

// githubMore: the addresses. The one in the profile is whatever its owner shows to the public.
func githubMore(ctx context.Context, s *signIn, _ object, d *Profile) error {
	var list []object
	if err := s.call(ctx, "/user/emails", "", &list); err != nil {
		return err
	}
	for _, e := range list {
		d.addEmail(e.text("email"), e.yes("verified"), e.yes("primary"))
	}
	return nil
}
