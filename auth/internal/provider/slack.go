package provider

import (
	"context"
	"errors"
)

// slackMore: two members are named by addresses. Older applications' answers have no flag for the address;
// what such a workspace gives counts as proven in the legacy mode only. OpenID Connect names the user in
// sub as well, which does where the other name is missing.
func slackMore(_ context.Context, s *signIn, me jsonObject, d *Profile) error {
	if me.lookup("ok") == false {
		return errors.New("the profile call says that it is not ok")
	}
	const user, team = "https://slack.com/user_id", "https://slack.com/team_id"
	if d.Subject = scalarText(me[user]); d.Subject == "" && s.mode != "legacy" {
		d.Subject = me.textAt("sub")
	}
	d.setCustom(team, me[team])
	verified := me.isTrue("email_verified")
	if s.mode == "legacy" && me.lookup("email_verified") == nil {
		verified = true
	}
	d.addEmail(me.textAt("email"), verified, true)
	return nil
}
