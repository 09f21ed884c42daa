"""Which configs of a kernel to try on a device, best guess first: a kernel's axes and facts come in, configs go out.

Engines ask for the first guess, tuning for all of them: `candidates` answers, by the kernel's form. Here is what kernel
forms share; what is one form's own is in `kernel_forms`.
"""
