package provider

import "context"

// gitlabMore: the first address is confirmed when the account is; of the others nothing is known.
func gitlabMore(ctx context.Context, s *signIn, me object, d *Profile) error {
	d.set("iss", s.base)
	var list []object
	if err := s.call(ctx, "/api/v4/user/emails", "", &list); err != nil {
		return err
	}
	for _, e := range list {
		d.addEmail(e.text("email"), false, false)
	}
	d.addEmail(me.text("email"), me.text("confirmed_at") != "", true)
	return nil
}
