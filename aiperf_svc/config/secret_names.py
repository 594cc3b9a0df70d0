"""Names under which people keep secrets: of headers, environment variables and flags."""

import re

SECRET_NAME = re.compile(
    r"(^|[-_])(authorization|auth|token|secret|password|passwd|passphrase|cookie"
    r"|(api|auth|access|secret|subscription)[-_]?key)$",
    re.IGNORECASE,
)
