package provider

import "context"

func bitbucketMore(ctx context.Context, s *signIn, me jsonObject, d *Profile) error {
	d.set("picture avatar_url", me.textAt("avatar.href")) // where older versions of the API have it
	var list jsonObject
	if err := s.call(ctx, "/user/emails", "", &list); err != nil {
		return err
	}
	list.eachObject("values", func(e jsonObject) {
		d.addEmail(e.textAt("email"), e.isTrue("is_confirmed"), e.isTrue("is_primary"))
	})
	return nil
}
